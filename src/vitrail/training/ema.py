"""Exponential moving average of the weights (after Polyak and Juditsky 1992)."""

import copy

import torch
from torch import nn

from vitrail.training.parallel import to_local


class EMA:
    """A copy of the model with averaged weights. The decay is smaller early on, to forget the initial weights soon."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Update the average after ``step`` updates: ema = decay * ema + (1 - decay) * weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(to_local(list(self.model.parameters())), to_local(list(model.parameters())), 1 - decay)
        for buffer, source in zip(self.model.buffers(), model.buffers(), strict=True):
            buffer.copy_(source)
