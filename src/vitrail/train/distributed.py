"""How a model is spread over the ranks of a team, and what of its tensors is where.

Every rank computes its part of one global batch. DDP (Li et al. 2020) keeps the whole model on each and adds up gradients;
FSDP2 (Zhao et al. 2023) keeps a part of every weight, gradient and moment on each, and brings a block together when it is its
turn. Beside this file the loop differs for several processes in what ``team`` agrees upon and in how checkpoints are written.
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
    """DDP where the weights, their moments and one picture fit into what a rank has, else FSDP2."""
    free = team.free(where)
    if parallel != "auto" or team.ranks == 1:
        return parallel
    return "fsdp" if team.any(free is not None and needed(cost(config)) > SPARE * free) else "ddp"


def spread(model: nn.Module, average: nn.Module | None, parallel: Parallel, half: bool, team: Team) -> nn.Module:
    """Over the ranks; what is called in training is the answer. ``half``: weights travel and are computed with in bfloat16."""
    if team.ranks == 1:
        return model
    if parallel == "fsdp":
        for each in (model, average):
            if each is not None:
                _shard(each, half)
        return model
    ids = [team.local] if next(model.parameters()).is_cuda else None
    # what pre-training leaves out of an encoder gets no gradient, and is not waited for
    unused = hasattr(model, "encoder")
    return DistributedDataParallel(
        model, device_ids=ids, forward_sync_buffers=False, gradient_as_bucket_view=True, find_unused_parameters=unused
    )


def sharded(model: nn.Module) -> bool:
    return hasattr(model, "reshard")  # as FSDP2 makes it


def syncing(module: nn.Module, wanted: bool) -> AbstractContextManager[Any]:
    """Gradients of all ranks are brought together behind the last piece of a batch alone. FSDP2 does it behind each: until then
    every rank would keep the whole gradient, and who shards has no room for that."""
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not wanted else nullcontext()


def local(tensors: list[Tensor]) -> list[Tensor]:
    """What of them is here. What is done number by number needs no other rank."""
    return [each.to_local() if hasattr(each, "to_local") else each for each in tensors]


def whole(tensor: Tensor) -> Tensor:
    """From all ranks, which must all ask for it."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def part_like(tensor: Tensor, like: Any) -> Tensor:
    """What this rank keeps of a tensor that all have."""
    if not hasattr(like, "placements"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def _shard(model: nn.Module, half: bool) -> None:
    """Block by block. What autocast computes in full, as norms and what is outside of blocks, travels in full."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # which take a second to import

    lower = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)  # gradients are added up in full
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
