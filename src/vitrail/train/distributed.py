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
from vitrail.layers.drop import LayerScale
from vitrail.models.cost import cost
from vitrail.models.resnet import Unit
from vitrail.models.settings import ModelConfig
from vitrail.train.memory import SPARE, needed
from vitrail.train.team import Team

Parallel = Literal["auto", "ddp", "fsdp"]


def chosen(parallel: Parallel, config: ModelConfig, where: torch.device, team: Team) -> Parallel:
    """Choose DDP if weights, optimiser state and one image fit into the memory of a rank, else FSDP2."""
    free = team.free(where)
    if parallel != "auto" or team.ranks == 1:
        return parallel
    return "fsdp" if team.any(free is not None and needed(cost(config)) > SPARE * free) else "ddp"


def spread(model: nn.Module, average: nn.Module | None, parallel: Parallel, half: bool, team: Team) -> nn.Module:
    """Wrap or shard the model, and return the module to call in training. ``bfloat16``: communicate and compute in bfloat16."""
    if team.ranks == 1:
        return model
    if parallel == "fsdp":
        for each in (model, average):
            if each is not None:
                _shard(each, half)
        return model
    ids = [team.local] if next(model.parameters()).is_cuda else None
    # parts of the encoder that pre-training does not use get no gradient
    unused = hasattr(model, "encoder")
    return DistributedDataParallel(
        model, device_ids=ids, forward_sync_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=unused
    )


def sharded(model: nn.Module) -> bool:
    return hasattr(model, "reshard")  # set by FSDP2


def syncing(module: nn.Module, wanted: bool) -> AbstractContextManager[Any]:
    """Synchronise gradients after the last micro-batch only. FSDP2 does it after each: otherwise every rank would keep a whole
    gradient, which sharding is to avoid."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not wanted else nullcontext()


def local(tensors: list[Tensor]) -> list[Tensor]:
    """Return the local shards, for elementwise operations, which need no other rank."""
    return [each.to_local() if hasattr(each, "to_local") else each for each in tensors]


def whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; a collective that all ranks must call."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def part_like(tensor: Tensor, like: Any) -> Tensor:
    """Shard a tensor that all ranks have, in the same way as another."""
    if not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def _shard(model: nn.Module, half: bool) -> None:
    """Shard block by block. What autocast computes in float32, norms and all outside of blocks, is communicated in float32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # takes a second to import

    lower = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)  # gradients are reduced in float32
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    exact: list[nn.Module] = [
        part for block in blocks for part in block.modules() if isinstance(part, nn.LayerNorm | LayerScale)
    ]
    if half and exact:
        fully_shard(exact, reshard_after_forward=False)
    for block in blocks:
        fully_shard(block, mp_policy=lower if half else MixedPrecisionPolicy())
    for unit in (module for module in model.modules() if isinstance(module, Unit)):
        fully_shard(unit)
    fully_shard(model)
