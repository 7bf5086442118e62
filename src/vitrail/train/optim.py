"""Optimisers and their parameter groups: by weight decay, depth and matrix or not."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.train.distributed import sharded
from vitrail.train.muon import Muon
from vitrail.train.recipe import Optim

UNDECAYED = ("positions", "cls", "registers", "relative", "scale", "probe", "mask")  # tokens, positions and scales
BEHIND = ("norm.", "pooled_norm.", "pool.", "decoder.", "predict.", "mask")  # after the blocks


@dataclass(frozen=True)
class Place:
    """Depth of a weight: 0 before the blocks, their index from 1, then one more after them."""

    depth: int
    head: bool


def place(name: str, blocks: int) -> Place:
    name = _own(name)
    if name.startswith("head."):
        return Place(blocks + 1, True)
    inside = re.match(r"blocks\.(\d+)\.", name)
    if inside:
        return Place(int(inside[1]) + 1, False)
    return Place(blocks + 1 if name.startswith(BEHIND) else 0, False)


def _own(name: str) -> str:
    """Return the name of a weight in the encoder, if that is part of a larger model."""
    return name.removeprefix("encoder.")


def decays(name: str, weight: Tensor) -> bool:
    """Whether a weight decays: matrices and kernels, never norms, biases, tokens and positions."""
    return weight.ndim >= 2 and not any(part in UNDECAYED for part in name.split("."))


def freeze(model: nn.Module, optim: Optim) -> None:
    """Freeze all weights that the recipe does not train."""
    blocks = _blocks(model)
    if optim.train == "blocks" and not blocks:
        raise VitrailError(
            "optim.trainable=blocks freezes all but the last blocks, and this model has none; try optim.trainable=head"
        )
    if optim.train == "blocks" and not 1 <= optim.blocks <= blocks:
        raise VitrailError(f"optim.trainable_blocks must be from 1 to {blocks}, the model's blocks, got {optim.blocks}; try 1")
    first = {"all": 0, "blocks": blocks + 1 - optim.blocks, "head": blocks + 2}[optim.train]
    for name, weight in model.named_parameters():
        where = place(name, blocks)
        weight.requires_grad_(where.head or where.depth >= first)


def optimisers(model: nn.Module, optim: Optim) -> list[torch.optim.Optimizer]:
    """Build one optimiser, or two with Muon. Each group has its learning-rate factor as ``lr_scale``."""
    groups = list(_groups(model, optim))
    if optim.kind == "sgd":
        fused = _fused(model) and not sharded(model)  # torch has no such kernel for sharded weights
        return [torch.optim.SGD(groups, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov, fused=fused)]
    matrices = [group for group in groups if group["is_matrix"] and optim.kind == "muon"]
    others = [group for group in groups if not (group["is_matrix"] and optim.kind == "muon")]
    made: list[torch.optim.Optimizer] = []
    if others:
        made.append(torch.optim.AdamW(others, lr=optim.lr, betas=optim.betas, eps=optim.epsilon, fused=_fused(model)))
    if matrices:
        made.append(Muon(matrices, lr=optim.matrix_lr, momentum=optim.matrix_momentum))
    return made


def set_rate(made: Iterable[torch.optim.Optimizer], optim: Optim, share: float) -> None:
    """Set the learning rate and weight decay of this step in every group."""
    for optimiser in made:
        peak = optim.matrix_lr if isinstance(optimiser, Muon) else optim.lr
        for group in optimiser.param_groups:
            group["lr"] = peak * share * group["lr_scale"]
            decay = optim.weight_decay if group["decay"] else 0.0
            # torch decays by lr * weight_decay; for independent decay lr cancels out, but for the schedule
            group["weight_decay"] = decay / (peak * group["lr_scale"]) if optim.decay_apart else decay


def _groups(model: nn.Module, optim: Optim) -> Iterator[dict[str, object]]:
    blocks = _blocks(model)
    if optim.layer_decay < 1 and not blocks:
        raise VitrailError("optim.layer_decay is from block to block, and this model has no blocks; try optim.head_lr_scale=10")
    by_kind: dict[tuple[float, bool, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        where = place(name, blocks)
        times = optim.layer_decay ** (blocks + 1 - where.depth) * (optim.head_lr if where.head else 1.0)
        matrix = decays(name, weight) and weight.ndim == 2 and ".blocks." in f".{name}"
        by_kind.setdefault((times, decays(name, weight), matrix), []).append(weight)
    for (times, decay, matrix), weights in by_kind.items():
        yield {"params": weights, "lr_scale": times, "decay": decay, "is_matrix": matrix, "weight_decay": 0.0}


def _blocks(model: nn.Module) -> int:
    return max(
        (int(found[1]) + 1 for name, _ in model.named_parameters() if (found := re.match(r"blocks\.(\d+)\.", _own(name)))),
        default=0,
    )


def _fused(model: nn.Module) -> bool:
    return all(weight.device.type in ("cpu", "cuda", "mps") and weight.is_floating_point() for weight in model.parameters())
