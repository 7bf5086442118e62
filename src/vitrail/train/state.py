"""The state of a run, one object that can be saved: weights, EMA weights, optimiser state, and a step counter.

Data and random numbers need nothing more: batches, augmentation and dropout follow from (seed, step).
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.augment.chance import bits
from vitrail.errors import VitrailError
from vitrail.train.distributed import spread
from vitrail.train.ema import Average
from vitrail.train.optim import freeze, optimisers
from vitrail.train.recipe import Recipe
from vitrail.train.team import ALONE, Team

PARTS = ("model", "optimisers", "average", "module", "team")
DROPOUT = 0x64726F70  # the random stream of dropout


@dataclass
class State:
    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    average: Average | None
    module: nn.Module  # called in training: the model, or its DDP wrapper
    team: Team = ALONE
    step: int = 0
    best: float | None = None  # value of the primary metric on validation
    best_step: int = 0
    skipped: int = 0  # steps whose loss or gradient was not finite
    seconds: float = 0.0  # of training, over all sessions
    images: int = 0
    micro: int | None = None  # smaller than the recipe's after running out of memory

    def counters(self) -> dict[str, Any]:
        """Everything that changes and is not a tensor."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in PARTS}

    @property
    def shown(self) -> nn.Module:
        """The model that is evaluated and saved: the EMA weights, if there are any."""
        return self.model if self.average is None else self.average.model

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that changes, by name, not copied."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.average is not None:
            found |= {f"ema.{name}": value for name, value in self.average.model.state_dict().items()}
        names: dict[Tensor, str] = {weight: name for name, weight in self.model.named_parameters()}
        for number, optimiser in enumerate(self.optimisers):
            for weight, moments in optimiser.state.items():
                for kind, value in moments.items():
                    found[f"optimizer.{number}.{kind}.{names[weight]}"] = torch.as_tensor(value)
        return found

    def restore(self, counters: dict[str, Any]) -> None:
        for name in self.counters().keys() - {"micro"}:  # what fits now need not be what fitted then
            setattr(self, name, counters.get(name, getattr(self, name)))  # missing in checkpoints of older versions

    @torch.no_grad()
    def places(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """The tensors to load a checkpoint into, by name. Optimiser state, absent before the first step, is allocated."""
        weights = dict(self.model.named_parameters())
        for name, shape in shapes.items():
            head, _, rest = name.partition(".")
            number, kind, weight = [*rest.split(".", 2), "", ""][:3]
            if head != "optimizer":
                continue
            if not number.isdecimal() or int(number) >= len(self.optimisers) or weight not in weights:
                raise VitrailError(f"the checkpoint has {name!r}, which this recipe does not use")
            like = weights[weight]
            self.optimisers[int(number)].state[like][kind] = torch.zeros_like(like) if shape else torch.zeros(())
        found = self.tensors()
        missing = sorted(found.keys() ^ shapes.keys())
        if missing:
            raise VitrailError(f"the checkpoint is of another model: {missing[0]} is in only one of the two")
        return found


def fresh(model: nn.Module, recipe: Recipe, team: Team = ALONE) -> State:
    freeze(model, recipe.optim)
    average = None if recipe.ema is None else Average(model, recipe.ema)
    beside = None if average is None else average.model
    module = spread(model, beside, recipe.parallel, recipe.precision == "bfloat16", team)
    return State(model, optimisers(model, recipe.optim), average, module, team, micro=recipe.micro)


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed dropout and stochastic depth from the step, so that no generator state must be saved."""
    torch.manual_seed(int(bits(seed, DROPOUT, step, rank)[0] >> 1))
