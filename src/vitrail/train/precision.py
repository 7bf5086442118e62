"""Whether this machine can compute as a recipe asks, found out before the first step. Needs no torch unless it compiles.

Some virtual machines announce AMX and kill the process at the first product in bfloat16, so that is tried in a process of its
own. Compiling needs a C++ compiler, which a machine that only trains may not have.
"""

import subprocess
import sys

from vitrail.errors import VitrailError
from vitrail.train.recipe import Recipe

REMEDY = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"  # read by oneDNN at a process's first product, so it goes before the command
PROBE = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def check_machine(recipe: Recipe, device: str) -> None:
    """Refuse what would end the process at its first step. ``device`` is its kind: cpu, cuda, mps."""
    fault = bfloat16_fault() if recipe.precision == "bfloat16" and device == "cpu" else None
    if fault is not None:
        raise VitrailError(f"precision=bfloat16 {fault}; put {REMEDY} in front of the command, or take precision=float32")
    fault = compiler_fault(device) if recipe.compile else None
    if fault is not None:
        raise VitrailError(f"compile=true does not work here ({fault}); install a C++ compiler, or take compile=false")


def bfloat16_fault() -> str | None:
    """What goes wrong with a product of bfloat16 matrices on this CPU, in words; none where nothing does."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False)
    if done.returncode == 0:
        return None
    return "kills the process: the CPU announces AMX and does not have it" if done.returncode < 0 else "fails"


def compiler_fault(device: str) -> str | None:
    """What goes wrong when the smallest function is compiled for the device; none where nothing does."""
    import torch

    try:
        torch.compile(torch.sin)(torch.ones(8, device=device))
    except RuntimeError as error:  # of the compiler, all of whose errors are one
        return str(error).strip().splitlines()[0].rstrip(".")
    return None
