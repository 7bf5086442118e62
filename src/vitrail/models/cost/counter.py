"""Counter for one stage of a model: parameters, MACs, saved and peak activations. Torch-free."""

from dataclasses import dataclass, field
from math import prod

FLOAT_BYTES = 4  # bytes
INDEX_FLOATS = 2  # an int64 index is as large as two floats
NORM_GROUPS = 32


@dataclass(frozen=True)
class Stage:
    """Cost of one stage between image and logits."""

    name: str
    shape: tuple[int, ...]  # of the output
    parameters: int
    macs: int
    peak_bytes: int  # peak bytes during the forward pass
    saved_bytes: int  # bytes saved for the backward pass


@dataclass
class OpCounter:
    """Counter for one stage: floats per image, and floats that do not grow with the batch."""

    parameters: int = 0
    macs: int = 0
    saved_floats: int = 0
    saved_floats_fixed: int = 0
    peak_floats: int = 0
    peak_floats_fixed: int = 0
    moments: list[tuple[int, int]] = field(default_factory=list)  # floats per image and fixed ones that exist together

    def linear(self, rows: int, inputs: int, outputs: int, bias: bool = True) -> None:
        self.parameters += outputs * (inputs + bias)
        self.macs += rows * inputs * outputs

    def norm(self, rows: int, width: int, kind: str = "layer") -> None:
        """Count a norm, which saves its input and statistics of each row, and has a scale and perhaps a shift."""
        self.parameters += norm_parameters(width, kind)
        self.saved_floats += rows * width + norm_saved(rows, width, kind)

    def conv(self, inputs: int, outputs: int, kernel: int, out: tuple[int, int]) -> None:
        """Count a standardised convolution, which saves its kernels centred and standardised."""
        weights = inputs * outputs * kernel**2
        self.parameters += weights
        self.macs += weights * prod(out)
        self.saved_floats_fixed += 2 * weights
        self.peak_floats_fixed = max(self.peak_floats_fixed, 2 * weights)

    def group_norm(self, channels: int, side: tuple[int, int]) -> None:
        self.parameters += 2 * channels
        self.saved_floats += channels * prod(side) + 2 * NORM_GROUPS

    def update_peak(self, *floats: int) -> None:
        self.peak_floats = max(self.peak_floats, *floats)

    def add_moment(self, floats: int, fixed: int) -> None:
        """Add a moment that may be the peak of some batch sizes: so many floats per image, and fixed ones beside them."""
        self.moments.append((floats, fixed))

    def to_stage(self, name: str, batch: int, *shape: int) -> Stage:
        moments = [(self.peak_floats, self.peak_floats_fixed), *self.moments]
        peak_bytes = FLOAT_BYTES * max(batch * floats + fixed for floats, fixed in moments)
        saved_bytes = FLOAT_BYTES * (batch * self.saved_floats + self.saved_floats_fixed)
        return Stage(name, (batch, *shape), self.parameters, self.macs, peak_bytes, saved_bytes)


def norm_parameters(width: int, kind: str) -> int:
    """Return the parameters of a norm: a scale and a shift, or only the scale of an RMSNorm."""
    return (2 if kind == "layer" else 1) * width


def norm_saved(rows: int, width: int, kind: str) -> int:
    """Return the floats that a norm saves beside its input: mean and deviation of each row or, as an RMSNorm is computed
    in single steps on a CPU, the root mean square of each and the rows divided by it, which the scale multiplies."""
    return 2 * rows if kind == "layer" else rows * (width + 1)
