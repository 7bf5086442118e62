"""The state of a run, one object that can be saved: weights, their average, the optimisers' moments, and a counter.

Data and chance need nothing more: batches, augmentation and dropout follow from (seed, step).
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.augment.chance import bits
from vitrail.errors import VitrailError
from vitrail.train.ema import Average
from vitrail.train.optim import freeze, optimisers
from vitrail.train.recipe import Recipe

PARTS = ("model", "optimisers", "average")
DROPOUT = 0x64726F70  # where dropout draws in the space of chance


@dataclass
class State:
    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    average: Average | None
    step: int = 0
    best: float | None = None  # of the validation's main number
    best_step: int = 0
    skipped: int = 0  # steps whose loss or gradient was no number
    seconds: float = 0.0  # of work, over all its sittings
    images: int = 0
    micro: int | None = None  # pictures computed at a time; less than the recipe's where memory did not suffice

    def counters(self) -> dict[str, Any]:
        """What is no tensor."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in PARTS}

    @property
    def shown(self) -> nn.Module:
        """The model that is evaluated and kept."""
        return self.model if self.average is None else self.average.model

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name, as it is."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.average is not None:
            found |= {f"average.{name}": value for name, value in self.average.model.state_dict().items()}
        names: dict[Tensor, str] = {weight: name for name, weight in self.model.named_parameters()}
        for number, optimiser in enumerate(self.optimisers):
            for weight, moments in optimiser.state.items():
                for kind, value in moments.items():
                    found[f"optimiser.{number}.{kind}.{names[weight]}"] = torch.as_tensor(value)
        return found

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        for name in self.counters():
            setattr(self, name, counters.get(name, getattr(self, name)))  # one that an older version did not count
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimiser": {}}
        for name, value in tensors.items():
            head, _, rest = name.partition(".")
            if head not in parts:
                raise VitrailError(f"a checkpoint has no part named {head!r}")
            parts[head][rest] = value
        self.model.load_state_dict(parts["model"])
        if self.average is not None:
            self.average.model.load_state_dict(parts["average"])
        weights = dict(self.model.named_parameters())
        for name, value in parts["optimiser"].items():
            number, kind, weight = name.split(".", 2)
            own = value.clone() if value.ndim == 0 else value.clone().to(weights[weight].device)
            self.optimisers[int(number)].state[weights[weight]][kind] = own


def fresh(model: nn.Module, recipe: Recipe) -> State:
    freeze(model, recipe.optim)
    average = None if recipe.ema is None else Average(model, recipe.ema)
    return State(model, optimisers(model, recipe.optim), average, micro=recipe.micro)


def seed_step(seed: int, step: int) -> None:
    """Dropout and stochastic depth of a step are drawn from the step's own seed, so there is no stream to save."""
    torch.manual_seed(int(bits(seed, DROPOUT, step, 0)[0] >> 1))
