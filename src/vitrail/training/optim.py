"""Optimisers and their parameter groups: by weight decay, depth and matrix or not."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Optim
from vitrail.training.muon import Muon
from vitrail.training.parallel import is_sharded

# Tokens, positions and scales. The MLP of a relative bias stands for a table of offsets, and Swin V2 excludes it as well.
NO_DECAY = ("positions", "cls", "registers", "relative", "relative_bias", "rotary", "scale", "probe", "mask", "queries")
AFTER_BLOCKS = ("norm.", "pooled_norm.", "pool.", "decoder.", "predict.", "mask")  # after the blocks


@dataclass(frozen=True)
class ParamLocation:
    """Depth of a weight: 0 before the blocks, their index from 1, then one more after them."""

    depth: int
    head: bool


def locate_param(name: str, blocks: int) -> ParamLocation:
    name = _strip_encoder(name)
    if name.startswith("head."):
        return ParamLocation(blocks + 1, True)
    # learned rotary frequencies and relative biases are at the depth of their layer, those of all layers at that of the first
    match = re.match(r"(?:blocks|rotary|relative_bias)\.(\d+)\.", name)
    if match:
        return ParamLocation(int(match[1]) + 1, False)
    return ParamLocation(blocks + 1 if name.startswith(AFTER_BLOCKS) else 0, False)


def _strip_encoder(name: str) -> str:
    """Return the name of a weight in the encoder, if that is part of a larger model."""
    return name.removeprefix("encoder.")


def has_weight_decay(name: str, weight: Tensor) -> bool:
    """Whether a weight decays: matrices and kernels, never norms, biases, tokens and positions."""
    return weight.ndim >= 2 and not any(part in NO_DECAY for part in name.split("."))


def freeze(model: nn.Module, optim: Optim) -> None:
    """Freeze all weights that the recipe does not train."""
    blocks = _count_blocks(model)
    first = {"all": 0, "blocks": blocks + 1 - optim.trainable_blocks, "head": blocks + 2}[optim.trainable]
    for name, weight in model.named_parameters():
        location = locate_param(name, blocks)
        weight.requires_grad_(location.head or location.depth >= first)


def build_optimisers(model: nn.Module, optim: Optim) -> list[torch.optim.Optimizer]:
    """Build one optimiser, or two with Muon. Each group has its learning-rate factor as ``lr_scale``."""
    groups = list(_param_groups(model, optim))
    if optim.name == "sgd":
        fused = _can_fuse(model) and not is_sharded(model)  # torch has no such kernel for sharded weights
        return [torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov, fused=fused)]
    matrices = [group for group in groups if group["is_matrix"] and optim.name == "muon"]
    others = [group for group in groups if not (group["is_matrix"] and optim.name == "muon")]
    built: list[torch.optim.Optimizer] = []
    if others:
        built.append(torch.optim.AdamW(others, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=_can_fuse(model)))
    if matrices:
        built.append(Muon(matrices, lr=optim.muon_lr, momentum=optim.muon_momentum))
    return built


def set_lr(optimisers: Iterable[torch.optim.Optimizer], optim: Optim, multiplier: float) -> None:
    """Set the learning rate and weight decay of this step in every group."""
    for optimiser in optimisers:
        peak = optim.muon_lr if isinstance(optimiser, Muon) else optim.lr
        for group in optimiser.param_groups:
            group["lr"] = peak * multiplier * group["lr_scale"]
            decay = optim.weight_decay if group["decay"] else 0.0
            # torch decays by lr * weight_decay; for independent decay lr cancels out, but for the schedule
            group["weight_decay"] = decay / (peak * group["lr_scale"]) if optim.independent_weight_decay else decay


def _param_groups(model: nn.Module, optim: Optim) -> Iterator[dict[str, object]]:
    blocks = _count_blocks(model)
    if optim.layer_decay < 1 and not blocks:
        raise VitrailError("optim.layer_decay is from block to block, and this model has no blocks; try optim.head_lr_scale=10")
    by_kind: dict[tuple[float, bool, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        location = locate_param(name, blocks)
        lr_scale = optim.layer_decay ** (blocks + 1 - location.depth) * (optim.head_lr_scale if location.head else 1.0)
        matrix = has_weight_decay(name, weight) and weight.ndim == 2 and ".blocks." in f".{name}"
        by_kind.setdefault((lr_scale, has_weight_decay(name, weight), matrix), []).append(weight)
    for (lr_scale, decay, matrix), weights in by_kind.items():
        yield {"params": weights, "lr_scale": lr_scale, "decay": decay, "is_matrix": matrix, "weight_decay": 0.0}


def _count_blocks(model: nn.Module) -> int:
    return max(
        (
            int(match[1]) + 1
            for name, _ in model.named_parameters()
            if (match := re.match(r"blocks\.(\d+)\.", _strip_encoder(name)))
        ),
        default=0,
    )


def _can_fuse(model: nn.Module) -> bool:
    return all(weight.device.type in ("cpu", "cuda", "mps") and weight.is_floating_point() for weight in model.parameters())
