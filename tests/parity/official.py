"""Reads the official model's .npz names into ours: just enough for the golden files."""

from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from vitrail.models.variants import Stem, ViTConfig

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CONFIGS = {
    "token": ViTConfig(width=48, depth=3, mlp=192, heads=3, patch=(8, 8), image=(32, 32), classes=11),
    "gap_prelogits": ViTConfig(
        width=48, depth=2, mlp=192, heads=3, patch=(8, 8), image=(32, 48), classes=7, pool="gap", head="mlp"
    ),
    "hybrid_stem": ViTConfig(width=48, depth=2, mlp=192, heads=3, patch=(4, 4), image=(64, 64), classes=5, stem=Stem(width=32)),
    "hybrid_stages": ViTConfig(
        width=48, depth=2, mlp=192, heads=3, patch=(1, 1), image=(32, 32), classes=5, stem=Stem(stages=(1, 2), width=32)
    ),
}


def read(name: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file.files}


def state(config: ViTConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    ours: dict[str, Tensor] = {}
    ours |= _affine("embed.project", weights["embedding/kernel"].permute(3, 2, 0, 1), weights["embedding/bias"])
    table = weights["Transformer/posembed_input/pos_embedding"][0]
    if config.has_class_token:
        ours["cls"] = weights["cls"][0, 0]
        ours["positions.0.prefix"] = table[:1]
    ours["positions.0.table.weight"] = rearrange(table[config.prefix :], "(h w) d -> h w d", h=config.grid[0])
    for layer in range(config.depth):
        theirs, mine = f"Transformer/encoderblock_{layer}", f"blocks.{layer}"
        attention = f"{theirs}/MultiHeadDotProductAttention_1"
        ours |= _norm(f"{mine}.norm1", weights, f"{theirs}/LayerNorm_0")
        ours |= _norm(f"{mine}.norm2", weights, f"{theirs}/LayerNorm_2")
        qkv = [
            (weights[f"{attention}/{part}/kernel"], weights[f"{attention}/{part}/bias"]) for part in ("query", "key", "value")
        ]
        kernel = torch.cat([rearrange(kernel, "d h k -> (h k) d") for kernel, _ in qkv])
        ours |= _affine(f"{mine}.attention.qkv", kernel, torch.cat([bias.flatten() for _, bias in qkv]))
        out = rearrange(weights[f"{attention}/out/kernel"], "h k d -> d (h k)")
        ours |= _affine(f"{mine}.attention.out", out, weights[f"{attention}/out/bias"])
        for part, dense in (("up", "Dense_0"), ("down", "Dense_1")):
            ours |= _dense(f"{mine}.mlp.{part}", weights, f"{theirs}/MlpBlock_3/{dense}")
    ours |= _norm("norm", weights, "Transformer/encoder_norm")
    if config.head == "mlp":
        ours |= _dense("head.0", weights, "pre_logits") | _dense("head.2", weights, "head")
    else:
        ours |= _dense("head", weights, "head")
    return ours | _stem(config, weights)


def _stem(config: ViTConfig, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    if config.stem is None:
        return {}
    ours = {"stem.conv.weight": weights["conv_root/kernel"].permute(3, 2, 0, 1)} | _norm("stem.norm", weights, "gn_root")
    for stage, depth in enumerate(config.stem.stages):
        for unit in range(depth):
            theirs, mine = f"block{stage + 1}/unit{unit + 1}", f"stem.stages.{stage}.{unit}"
            for part in (1, 2, 3):
                ours[f"{mine}.conv{part}.weight"] = weights[f"{theirs}/conv{part}/kernel"].permute(3, 2, 0, 1)
                ours |= _norm(f"{mine}.norm{part}", weights, f"{theirs}/gn{part}")
            if f"{theirs}/conv_proj/kernel" in weights:
                ours[f"{mine}.shortcut.0.weight"] = weights[f"{theirs}/conv_proj/kernel"].permute(3, 2, 0, 1)
                ours |= _norm(f"{mine}.shortcut.1", weights, f"{theirs}/gn_proj")
    return ours


def _affine(name: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": weight, f"{name}.bias": bias.flatten()}


def _dense(name: str, weights: dict[str, Tensor], theirs: str) -> dict[str, Tensor]:
    return _affine(name, weights[f"{theirs}/kernel"].T, weights[f"{theirs}/bias"])


def _norm(name: str, weights: dict[str, Tensor], theirs: str) -> dict[str, Tensor]:
    return _affine(name, weights[f"{theirs}/scale"].flatten(), weights[f"{theirs}/bias"])
