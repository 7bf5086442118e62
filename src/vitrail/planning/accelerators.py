"""Accelerators to plan with: memory and peak FLOP/s from the makers' data sheets, and an assumed price per hour. Torch-free.

Peaks are of dense matrix products, without sparsity: in bfloat16, and in float32 with torch's defaults, which is without TF32.
A data sheet's GB counts as 10^9 bytes. Prices are round numbers in dollars per hour on demand, assumed and not looked up:
``vitrail plan --price-per-gpu-hour`` takes yours.
"""

from dataclasses import dataclass

from vitrail.errors import VitrailError, did_you_mean
from vitrail.recipes.recipe import Recipe

GB, TERA = 10**9, 10**12


@dataclass(frozen=True)
class Accelerator:
    """Memory, peak speed and assumed price of one accelerator."""

    name: str
    memory: int  # bytes
    bfloat16_flops: float | None  # FLOP/s; None: not supported
    float32_flops: float
    price_per_hour: float  # dollars per hour

    def peak_flops(self, recipe: Recipe) -> float:
        """Peak FLOP/s in the recipe's precision."""
        if recipe.precision == "float32":
            return self.float32_flops
        if self.bfloat16_flops is None:
            raise VitrailError(f"{self.name} does not support bfloat16; try --set precision=float32, or --gpu A100")
        return self.bfloat16_flops


def _row(name: str, memory: float, bfloat16: float | None, float32: float, price: float) -> Accelerator:
    return Accelerator(name, int(memory * GB), None if bfloat16 is None else bfloat16 * TERA, float32 * TERA, price)


_ROWS = (
    # NVIDIA's data sheets "A100 Tensor Core GPU", "H100 Tensor Core GPU" and "H200 Tensor Core GPU", columns SXM
    _row("A100", 80, 312, 19.5, 2.5),
    _row("A100-40", 40, 312, 19.5, 2.0),
    _row("H100", 80, 989, 67, 4.0),
    _row("H200", 141, 989, 67, 5.0),
    # "L4 Tensor Core GPU", "L40S", "A10", "RTX A6000": half of what they list with sparsity
    _row("L4", 24, 121, 30.3, 0.8),
    _row("L40S", 48, 362, 91.6, 1.8),
    _row("A10", 24, 125, 31.2, 1.0),
    _row("A6000", 48, 154.8, 38.7, 0.8),
    # "V100" (SXM2) and "T4": their tensor cores have float16 and no bfloat16
    _row("V100", 32, None, 15.7, 2.5),
    _row("V100-16", 16, None, 15.7, 2.0),
    _row("T4", 16, None, 8.1, 0.4),
    # NVIDIA's white papers "Ada" and "GA102", bfloat16 products accumulated in float32
    _row("RTX4090", 24, 165.2, 82.6, 0.5),
    _row("RTX3090", 24, 71, 35.6, 0.3),
    # AMD's data sheet "Instinct MI300X"
    _row("MI300X", 192, 1307.4, 163.4, 4.0),
    # Google Cloud, "TPU v3": a chip has two cores, 32 GiB and 123 teraflops in bfloat16, in which JAX by default multiplies
    # float32, too. To compare plans with the paper: Vitrail does not run on it.
    _row("TPUv3-core", 16, 61.5, 61.5, 1.0),
)
ACCELERATORS = {each.name: each for each in _ROWS}


def get_accelerator(name: str) -> Accelerator:
    """Look up an accelerator by name, ignoring case, dashes and spaces."""
    by_key = {_normalise(listed_name): listed_name for listed_name in ACCELERATORS}
    if _normalise(name) not in by_key:
        hint = did_you_mean(name, ACCELERATORS) or f"; there are {', '.join(ACCELERATORS)}"
        raise VitrailError(f"no accelerator is named {name[:40]!r}{hint}")
    return ACCELERATORS[by_key[_normalise(name)]]


def _normalise(name: str) -> str:
    return name.lower().replace("-", "").replace(" ", "").replace("_", "")
