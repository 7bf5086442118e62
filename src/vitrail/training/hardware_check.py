"""Check before the first step that the hardware supports the recipe. Torch-free unless the recipe compiles.

Some virtual machines report AMX and kill the process at the first bfloat16 product, so that is tried in a subprocess. Compiling
needs a C++ compiler, which a machine that only trains may not have.
"""

import subprocess
import sys

from vitrail.errors import VitrailError, first_line
from vitrail.recipes.recipe import Recipe

# oneDNN reads it at the first product, so it must be set before the command
AMX_WORKAROUND = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"
BFLOAT16_PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def check_hardware(recipe: Recipe, device: str) -> None:
    """Raise if the first step would crash the process. ``device`` is its type: cpu, cuda, mps."""
    fault = bfloat16_fault() if recipe.precision == "bfloat16" and device == "cpu" else None
    if fault is not None:
        raise VitrailError(f"precision=bfloat16 {fault}; put {AMX_WORKAROUND} before the command, or use precision=float32")
    fault = compiler_fault(device) if recipe.compile else None
    if fault is not None:
        raise VitrailError(f"compile=true does not work here ({fault}); install a C++ compiler, or use compile=false")


def bfloat16_fault() -> str | None:
    """Describe how a bfloat16 matrix product fails on this CPU; None if it works."""
    completed = subprocess.run([sys.executable, "-c", BFLOAT16_PROBE], capture_output=True, check=False)
    if completed.returncode == 0:
        return None
    return "kills the process: the CPU reports AMX but does not support it" if completed.returncode < 0 else "fails"


def compiler_fault(device: str) -> str | None:
    """Describe how compiling a tiny function for the device fails; None if it works."""
    import torch

    try:
        torch.compile(torch.sin)(torch.ones(8, device=device))
    except RuntimeError as error:  # base class of the compiler's errors
        return first_line(error).rstrip(".")
    return None
