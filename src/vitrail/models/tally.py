"""Counter for one stage of a model: parameters, MACs, saved and peak activations. Torch-free."""

from dataclasses import dataclass
from math import prod

FLOAT = 4  # bytes
GROUPS = 32


@dataclass(frozen=True)
class Stage:
    """Cost of one stage between image and logits."""

    name: str
    shape: tuple[int, ...]  # of the output
    parameters: int
    macs: int
    inference: int  # peak bytes during the forward pass
    training: int  # bytes saved for the backward pass


@dataclass
class Tally:
    """Counter for one stage: floats per image, and floats that do not grow with the batch."""

    parameters: int = 0
    macs: int = 0
    kept: int = 0
    kept_once: int = 0
    alive: int = 0
    alive_once: int = 0

    def dense(self, rows: int, inputs: int, outputs: int, bias: bool = True) -> None:
        self.parameters += outputs * (inputs + bias)
        self.macs += rows * inputs * outputs

    def norm(self, rows: int, width: int) -> None:
        """Count a layer norm, which saves its input and two statistics per row."""
        self.parameters += 2 * width
        self.kept += rows * (width + 2)

    def conv(self, inputs: int, outputs: int, kernel: int, out: tuple[int, int]) -> None:
        """Count a standardised convolution, which saves its kernels centred and standardised."""
        weights = inputs * outputs * kernel**2
        self.parameters += weights
        self.macs += weights * prod(out)
        self.kept_once += 2 * weights
        self.alive_once = max(self.alive_once, 2 * weights)

    def group_norm(self, channels: int, side: tuple[int, int]) -> None:
        self.parameters += 2 * channels
        self.kept += channels * prod(side) + 2 * GROUPS

    def peak(self, *floats: int) -> None:
        self.alive = max(self.alive, *floats)

    def stage(self, name: str, batch: int, *shape: int) -> Stage:
        inference = FLOAT * (batch * self.alive + self.alive_once)
        training = FLOAT * (batch * self.kept + self.kept_once)
        return Stage(name, (batch, *shape), self.parameters, self.macs, inference, training)
