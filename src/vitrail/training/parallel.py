"""Data-parallel training with DDP or FSDP2, and access to sharded tensors.

Every rank computes its part of one global batch. DDP (Li et al. 2020) replicates the model on each and averages gradients;
FSDP2 (Zhao et al. 2023) shards weights, gradients and optimiser state, and gathers a block when it is computed. Apart from
this file, several processes differ only in the collectives of ``process_group`` and in how checkpoints are written.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.layers.block import Block
from vitrail.layers.residual import LayerScale
from vitrail.models.config import ModelConfig
from vitrail.models.cost import cost
from vitrail.models.resnet import PreActBottleneck
from vitrail.training.memory import MEMORY_FRACTION, training_bytes
from vitrail.training.process_group import ProcessGroup

Parallel = Literal["auto", "ddp", "fsdp"]


def choose_strategy(parallel: Parallel, config: ModelConfig, device: torch.device, group: ProcessGroup) -> Parallel:
    """Choose DDP if weights, optimiser state and one image fit into the memory of a rank, else FSDP2."""
    free = group.free_memory(device)
    if parallel != "auto" or group.world_size == 1:
        return parallel
    return "fsdp" if group.any_rank(free is not None and training_bytes(cost(config)) > MEMORY_FRACTION * free) else "ddp"


def parallelise(
    model: nn.Module, ema_model: nn.Module | None, parallel: Parallel, bfloat16: bool, group: ProcessGroup
) -> nn.Module:
    """Wrap or shard the model, and return the module to call in training. ``bfloat16``: communicate and compute in bfloat16."""
    if group.world_size == 1:
        return model
    if parallel == "fsdp":
        for module in (model, ema_model):
            if module is not None:
                _shard(module, bfloat16)
        return model
    ids = [group.local_rank] if next(model.parameters()).is_cuda else None
    # parts of the encoder that pre-training does not use get no gradient
    has_unused = hasattr(model, "encoder")
    return DistributedDataParallel(
        model, device_ids=ids, forward_sync_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=has_unused
    )


def is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "reshard")  # set by FSDP2


def grad_sync(module: nn.Module, sync: bool) -> AbstractContextManager[Any]:
    """Synchronise gradients after the last micro-batch only. FSDP2 does it after each: otherwise every rank would keep a whole
    gradient, which sharding is to avoid."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not sync else nullcontext()


def to_local(tensors: list[Tensor]) -> list[Tensor]:
    """Return the local shards, for elementwise operations, which need no other rank."""
    return [each.to_local() if hasattr(each, "to_local") else each for each in tensors]


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; a collective that all ranks must call."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def shard_like(tensor: Tensor, reference: Any) -> Tensor:
    """Shard a tensor that all ranks have, in the same way as another."""
    if not hasattr(reference, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, reference.device_mesh, reference.placements, src_data_rank=None)


def _shard(model: nn.Module, bfloat16: bool) -> None:
    """Shard block by block. What autocast computes in float32, norms and all outside of blocks, is communicated in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes a second to import

    # gradients are reduced in float32
    mixed_precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    full_precision: list[nn.Module] = [
        part for block in blocks for part in block.modules() if isinstance(part, nn.LayerNorm | LayerScale)
    ]
    if bfloat16 and full_precision:
        fully_shard(full_precision, reshard_after_forward=False)
    for block in blocks:
        fully_shard(block, mp_policy=mixed_precision if bfloat16 else MixedPrecisionPolicy())
    for unit in (module for module in model.modules() if isinstance(module, PreActBottleneck)):
        fully_shard(unit)
    fully_shard(model)
