"""Training memory: an estimate of what fits before the first step, and the detection of out-of-memory errors.

On a CPU trying is no option: when memory runs out, the system kills the process instead of refusing an allocation.
"""

from pathlib import Path

from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig
from vitrail.models.cost import Cost, cost

MEMORY_FRACTION = 0.9  # of the free memory that is planned with
OOM_MESSAGES = ("allocate memory", "out of memory", "not enough memory", "bad_alloc", "could not create a primitive")  # oneDNN


def fit_micro_batch(config: ModelConfig, batch: int, free: int | None, shards: int = 1) -> int:
    """Return the micro-batch size that fits: the batch, a half, a quarter ... of it. ``shards``: of the weights, of which
    this process keeps one."""
    if free is None:
        return batch
    count = batch
    while count > 1 and training_bytes(cost(config, count), shards) > MEMORY_FRACTION * free:
        count = -(-count // 2)
    if training_bytes(cost(config, count), shards) > MEMORY_FRACTION * free:
        raise VitrailError(
            f"training on one image takes about {training_bytes(cost(config), shards) / 2**30:.1f} GiB and "
            f"{free / 2**30:.1f} GiB are free; try a smaller --model or --image-size"
        )
    return count


def training_bytes(model_cost: Cost, shards: int = 1) -> int:
    """Bytes of weights, gradients, optimiser state, and activations saved for backward."""
    return (model_cost.memory.weights + model_cost.memory.grads_and_moments) // shards + model_cost.memory.training


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in OOM_MESSAGES)
    )


def free_memory() -> int | None:
    """Bytes that this process may still allocate, by the machine and its control group; None if unknown."""
    limits = [bytes_ for bytes_ in (_machine_available(), _cgroup_available()) if bytes_ is not None]
    return min(limits) if limits else None


def _machine_available(path: Path = Path("/proc/meminfo")) -> int | None:
    for line in _read(path).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_available(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """A container's limit, in either version of Linux's control groups."""
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        max_bytes, used_bytes = _read(root / limit).strip(), _read(root / used).strip()
        if max_bytes.isdecimal() and used_bytes.isdecimal():
            return max(int(max_bytes) - int(used_bytes), 0)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
