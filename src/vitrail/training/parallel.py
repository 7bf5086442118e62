"""Data-parallel training with DDP or FSDP2, and access to sharded tensors.

Every rank computes its part of one global batch. DDP (Li et al. 2020) replicates the model on each and averages gradients;
FSDP2 (Zhao et al. 2023) shards weights, gradients and optimiser state, and gathers a block when it is computed. Apart from
this file, several processes differ only in the collectives of ``process_group`` and in how checkpoints are written.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vitrail.errors import VitrailError
from vitrail.layers.block import Block
from vitrail.layers.residual import LayerScale
from vitrail.models.resnet import PreActBottleneck
from vitrail.planning.memory_estimate import compute_model_costs
from vitrail.planning.strategy import MEMORY_FRACTION, choose_strategy, plan_strategies, settings_that_fit
from vitrail.recipes.recipe import Recipe
from vitrail.training.process_group import ProcessGroup

Parallel = Literal["auto", "ddp", "fsdp"]


def fit_to_memory(recipe: Recipe, device: torch.device, group: ProcessGroup) -> Recipe:
    """Return the recipe with the strategy and micro-batch size that fit into the free memory of every rank.

    On one GPU the micro-batch stays open: a step that is refused memory is retried in halves. On a CPU trying is no option,
    since the system kills the process, and a rank cannot retry while the others are in the middle of the step.
    """
    own, world_size = group.free_memory(device), group.world_size
    free = group.all_min(sys.maxsize if own is None else own)  # the ranks must not differ in what they choose
    budget = MEMORY_FRACTION * free
    plan = choose_strategy(recipe, plan_strategies(recipe, compute_model_costs(recipe), world_size, budget))
    if plan.strategy != "single":
        recipe = replace(recipe, parallel=plan.strategy)
    if recipe.micro_batch_size is not None or (device.type != "cpu" and world_size == 1):
        return recipe
    if not plan.fits:
        fitting = [setting.removeprefix("--set ") for setting in settings_that_fit(recipe, world_size, budget)]
        raise VitrailError(
            f"training on one image takes about {plan.memory.total / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free; "
            f"try {' or '.join(fitting or ['a smaller model or image size'])}"
        )
    return recipe if plan.micro_batches == 1 else replace(recipe, micro_batch_size=plan.micro_batch_size)


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
        part for block in blocks for part in block.modules() if isinstance(part, nn.LayerNorm | nn.RMSNorm | LayerScale)
    ]
    if bfloat16 and full_precision:
        fully_shard(full_precision, reshard_after_forward=False)
    for block in blocks:
        fully_shard(block, mp_policy=mixed_precision if bfloat16 else MixedPrecisionPolicy())
    for unit in (module for module in model.modules() if isinstance(module, PreActBottleneck)):
        fully_shard(unit)
    fully_shard(model)
