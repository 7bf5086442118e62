"""Training memory: an estimate of what fits before the first step, and the detection of out-of-memory errors.

On a CPU trying is no option: when memory runs out, the system kills the process instead of refusing an allocation.
"""

from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.models.cost import Cost, cost
from vitrail.models.settings import ModelConfig

SPARE = 0.9  # of the free memory that is planned with
REFUSALS = ("allocate memory", "out of memory", "not enough memory", "bad_alloc", "could not create a primitive")  # oneDNN


def fitting(config: ModelConfig, batch: int, free: int | None, parts: int = 1) -> int:
    """Return the micro-batch size that fits: the batch, a half, a quarter ... of it. ``shards``: of the weights, of which
    this process keeps one."""
    if free is None:
        return batch
    count = batch
    while count > 1 and needed(cost(config, count), parts) > SPARE * free:
        count = -(-count // 2)
    if needed(cost(config, count), parts) > SPARE * free:
        raise VitrailError(
            f"training on one image takes about {needed(cost(config), parts) / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
            "free; try a smaller --model or --image"
        )
    return count


def needed(known: Cost, parts: int = 1) -> int:
    """Bytes of weights, gradients, optimiser state, and activations saved for backward."""
    return (known.memory.weights + known.memory.adam) // parts + known.memory.training


def refused(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in REFUSALS)
    )


def free_memory() -> int | None:
    """Bytes that this process may still allocate, by the machine and its control group; None if unknown."""
    found = [bytes_ for bytes_ in (_machine(), _group()) if bytes_ is not None]
    return min(found) if found else None


def _machine(path: Path = Path("/proc/meminfo")) -> int | None:
    for line in _read(path).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """A container's limit, in either version of Linux's control groups."""
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        most, now = _read(root / limit).strip(), _read(root / used).strip()
        if most.isdecimal() and now.isdecimal():
            return max(int(most) - int(now), 0)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
