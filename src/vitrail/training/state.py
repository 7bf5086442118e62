"""The state of a run, one object that can be saved: weights, EMA weights, optimiser state, and a step counter.

Data and random numbers need nothing more: batches, augmentation and dropout follow from (seed, step).
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.augment.counter_rng import random_bits
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe
from vitrail.training.ema import EMA
from vitrail.training.optim import build_optimisers, freeze
from vitrail.training.parallel import parallelise
from vitrail.training.process_group import SINGLE_PROCESS, ProcessGroup

MODULE_FIELDS = ("model", "optimisers", "ema", "wrapped_model", "group")
DROPOUT_STREAM = 0x64726F70  # the random stream of dropout


@dataclass
class TrainState:
    model: nn.Module
    optimisers: list[torch.optim.Optimizer]
    ema: EMA | None
    wrapped_model: nn.Module  # called in training: the model, or its DDP wrapper
    group: ProcessGroup = SINGLE_PROCESS
    step: int = 0
    best: float | None = None  # value of the primary metric on validation
    best_step: int = 0
    skipped_steps: int = 0  # steps whose loss or gradient was not finite
    seconds: float = 0.0  # of training, over all sessions
    images: int = 0
    micro_batch_size: int | None = None  # smaller than the recipe's after running out of memory

    def scalars(self) -> dict[str, Any]:
        """Everything that changes and is not a tensor."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name not in MODULE_FIELDS}

    @property
    def eval_model(self) -> nn.Module:
        """The model that is evaluated and saved: the EMA weights, if there are any."""
        return self.model if self.ema is None else self.ema.model

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that changes, by name, not copied."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{name}": value for name, value in self.ema.model.state_dict().items()}
        names: dict[Tensor, str] = {weight: name for name, weight in self.model.named_parameters()}
        for index, optimiser in enumerate(self.optimisers):
            for weight, slots in optimiser.state.items():
                for slot, value in slots.items():
                    tensors[f"optimizer.{index}.{slot}.{names[weight]}"] = torch.as_tensor(value)
        return tensors

    def restore(self, scalars: dict[str, Any]) -> None:
        for name in self.scalars().keys() - {"micro_batch_size"}:  # what fits now need not be what fitted then
            setattr(self, name, scalars.get(name, getattr(self, name)))  # missing in checkpoints of older versions

    @torch.no_grad()
    def load_targets(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """The tensors to load a checkpoint into, by name. Optimiser state, absent before the first step, is allocated."""
        weights = dict(self.model.named_parameters())
        for name, shape in shapes.items():
            prefix, _, rest = name.partition(".")
            index, slot, weight = [*rest.split(".", 2), "", ""][:3]
            if prefix != "optimizer":
                continue
            if not index.isdecimal() or int(index) >= len(self.optimisers) or weight not in weights:
                raise VitrailError(f"the checkpoint has {name!r}, which this recipe does not use")
            param = weights[weight]
            self.optimisers[int(index)].state[param][slot] = torch.zeros_like(param) if shape else torch.zeros(())
        tensors = self.tensors()
        differences = sorted({name: tuple(tensor.shape) for name, tensor in tensors.items()}.items() ^ shapes.items())
        if differences:
            raise VitrailError(f"the checkpoint is of another model: {differences[0][0]} is missing, or has another shape")
        return tensors


def create_state(model: nn.Module, recipe: Recipe, group: ProcessGroup = SINGLE_PROCESS) -> TrainState:
    freeze(model, recipe.optim)
    ema = None if recipe.ema_decay is None else EMA(model, recipe.ema_decay)
    ema_model = None if ema is None else ema.model
    wrapped = parallelise(model, ema_model, recipe.parallel, recipe.precision == "bfloat16", group)
    return TrainState(
        model, build_optimisers(model, recipe.optim), ema, wrapped, group, micro_batch_size=recipe.micro_batch_size
    )


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed dropout and stochastic depth from the step, so that no generator state must be saved."""
    torch.manual_seed(int(random_bits(seed, DROPOUT_STREAM, step, rank)[0] >> 1))
