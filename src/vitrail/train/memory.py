"""What fits into memory: an estimate before the first step, and the errors that say that it did not.

A CPU must not be tried out: where the system runs short, it kills the process instead of refusing an allocation.
"""

from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.models.cost import Cost, cost
from vitrail.models.settings import ModelConfig

SPARE = 0.9  # of the free memory may be planned with
REFUSALS = ("allocate memory", "out of memory", "not enough memory", "bad_alloc", "could not create a primitive")  # oneDNN


def fitting(config: ModelConfig, batch: int, free: int | None, parts: int = 1) -> int:
    """Pictures that can be computed at a time: the batch, or the half, a quarter ... of it. ``parts``: of the weights, of which
    this process keeps one."""
    if free is None:
        return batch
    count = batch
    while count > 1 and needed(cost(config, count), parts) > SPARE * free:
        count = -(-count // 2)
    if needed(cost(config, count), parts) > SPARE * free:
        raise VitrailError(
            f"one picture takes about {needed(cost(config), parts) / 2**30:.1f} GiB to train on and {free / 2**30:.1f} GiB are "
            "free; try a smaller --model or --image"
        )
    return count


def needed(known: Cost, parts: int = 1) -> int:
    """Bytes of weights, gradients, moments and of the activations that a backward pass starts from."""
    return (known.memory.weights + known.memory.adam) // parts + known.memory.training


def refused(error: BaseException) -> bool:
    """Whether an allocation failed, on whatever device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in REFUSALS)
    )


def free_memory() -> int | None:
    """Bytes that this process may still ask for, of the machine's and of its control group's; none where nobody tells."""
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
