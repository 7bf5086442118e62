"""Infer what a file in timm's names computes when no config.json names its architecture, from its tensors; or refuse it.

Several architectures have the same tensors and compute different things; such a file is read only if something tells them
apart.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.layers.position import sincos2d
from vitrail.layers.rotary import Rotary
from vitrail.models.config import Pool, RotaryConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import Overrides
from vitrail.weights.convert.timm_architectures import Architecture
from vitrail.weights.convert.timm_arguments import apply_model_args
from vitrail.weights.convert.timm_names import has_rms_norms
from vitrail.weights.convert.timm_vit import has_gated_mlp

ADVICE = "put a config.json with its timm architecture next to it"


def bare_origin(file: Mapping[str, Tensor], tensors: Mapping[str, Tensor], sidecar: Mapping[str, Any]) -> str:
    """Return the project the weights come from, by what only its files have."""
    wrapper = sidecar.get("wrapper")
    if "rope_embed.periods" in file:
        return "DINOv3"
    if any(name.endswith("rope.freqs_cos") for name in file):
        return "EVA-02"
    if "rope.freqs" in tensors:
        return "RoPE-ViT"
    if any("relative_position_bias_table" in name for name in file):
        return "BEiT"
    if "norm_pre.weight" in file:
        return "CLIP"
    if "mask_token" in file and "blocks.0.ls1.gamma" in file:
        return "DINOv2"
    if _is_moco(tensors):
        return "MoCo-v3"
    if wrapper in ("teacher", "student"):
        return "DINO"
    if "blocks.0.gamma_1" in file:
        return "DeiT III" if re.match(r"deit_?3", str(sidecar.get("file_name", ""))) else "timm"
    return "DeiT" if wrapper == "model" or "dist_token" in file else "timm"


def bare_facts(
    file: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    sidecar: Mapping[str, Any],
    overrides: Overrides,
    origin: str,
    assumed: list[str],
) -> Architecture:
    """Return what the tensors do not show, by their origin, or assumed; ``tensors``: the file's in timm's names."""
    width = inspect.require_shape(tensors, "patch_embed.proj.weight", 4)[0]
    args = sidecar.get("model_args") or {}
    rotary, grid, channels = _rotary(file, origin, width, overrides)
    moco = origin == "MoCo-v3" and width == 384
    if moco:
        assumed.append("12 heads (MoCo-v3's small model; heads= overrides it)")
    gated = has_gated_mlp(tensors)
    return Architecture(
        heads=12 if moco else None,
        norm_eps=1e-5 if "norm_pre.weight" in tensors or origin == "DINOv3" else 1e-6,
        pool="cls+register" if "dist_token" in file else _infer_pool(tensors, sidecar, args, overrides, width, assumed),
        gelu="exact" if gated or args.get("act_layer") else inspect.infer_gelu("exact", overrides, assumed),
        rotary=rotary,
        rotary_grid=grid,
        rotary_channels=channels,
        # DINO's own files; DINOv2's models with registers are resized as timm does, and timm's copies of either too
        position_resize="dino" if origin == "DINO" or (origin == "DINOv2" and "reg_token" not in tensors) else "timm",
    )


def check_bare(file: Mapping[str, Tensor], tensors: Mapping[str, Tensor], overrides: Overrides, origin: str) -> None:
    """Refuse files whose tensors several architectures have that compute different things."""
    has_rotary = origin in ("DINOv3", "EVA-02", "RoPE-ViT")
    if any(".rel_pos.mlp." in name or name.startswith("shared_rel_pos.mlp.") for name in tensors):
        raise VitrailError(
            "the file has a relative position bias of timm's own, and does not show if its norms precede or end the branches; "
            f"{ADVICE}"
        )
    if "pos_embed" not in tensors and not has_rotary and origin != "BEiT":
        raise VitrailError(
            "the file has no position table pos_embed: its positions are rotary, and no tensor shows of which kind; " + ADVICE
        )
    if "blocks.0.gamma_1" in file and not has_rotary and origin not in ("DeiT III", "BEiT"):
        raise VitrailError(
            "the file names its layer scales as DeiT III and RoPE-ViT do, of which the second has rotary positions without a "
            f"tensor; {ADVICE}, or give a file of DeiT III its own name, deit_3_..."
        )
    if has_gated_mlp(tensors) and "blocks.0.ls1.gamma" not in tensors and not has_rotary:
        raise VitrailError(
            "the file has a gated MLP without layer scale, as EVA-02 has, which has rotary positions without a tensor; "
            f"{ADVICE}"
        )
    if "norm_pre.weight" in tensors and ("norm.weight" not in tensors or "attn_pool.latent" in tensors):
        raise VitrailError(
            "the file has a norm before the blocks without CLIP's pooling, as PE has, which has rotary positions without a "
            f"tensor; {ADVICE}"
        )
    if not any(f"blocks.0.attn.{part}" in tensors for part in ("qkv.bias", "q_norm.weight")) and not has_rotary:
        raise VitrailError(
            f"the file has no bias of q, k and v, and does not show if its norms precede or end the branches; {ADVICE}"
        )
    plain_eva = "blocks.0.attn.q_bias" in file and origin == "timm" and "fc_norm.weight" not in tensors
    if plain_eva:
        raise VitrailError(
            "the file has biases of q and v alone, as EVA and EVA-02 enormous have, whose norms precede or end the branches; "
            f"{ADVICE}"
        )
    if has_rms_norms(tensors):
        raise VitrailError(f"the file has RMSNorms, and does not show their epsilon; {ADVICE}")
    if "blocks.0.attn.norm.weight" in tensors and origin != "EVA-02":
        raise VitrailError(f"the file has a norm inside attention, and does not show its epsilon or its positions; {ADVICE}")
    if origin == "CLIP" and overrides.gelu is None:
        raise VitrailError(
            "the file is a CLIP tower and does not show its GELU; give gelu='quick' (OpenAI, DFN) or gelu='exact' (LAION)"
        )
    if {"attn_pool.latent", "reg_token"} <= set(tensors) and overrides.pool is None:
        raise VitrailError(f"the file does not show if its attention pooling reads the registers; {ADVICE}, or give pool='map'")


def _rotary(file: Mapping[str, Tensor], origin: str, width: int, overrides: Overrides) -> Any:
    """Return rotary positions, their grid and their channels, compared with what the file holds of them."""
    match origin:
        case "DINOv3":
            periods = file["rope_embed.periods"].double()
            expected = 100 ** (torch.arange(len(periods), dtype=torch.float64) / len(periods))
            if periods.ndim != 1 or not torch.allclose(periods, expected, rtol=1e-2):
                raise VitrailError("rope_embed.periods must be from 1 to nearly 100, in equal ratios, as in DINOv3")
            return RotaryConfig(coordinates="normalised"), None, "halves"
        case "EVA-02":
            config, grid = RotaryConfig(base=10_000, coordinates="scaled"), (16, 16)
            _check_cosines(next(tensor for name, tensor in file.items() if name.endswith("rope.freqs_cos")), config, grid)
            return config, grid, "rows-first"
        case "RoPE-ViT":
            return RotaryConfig(base=10, coordinates="index", mixed=True), None, "columns-first"
    return None, None, "rows-first"


def _check_cosines(table: Tensor, config: RotaryConfig, grid: tuple[int, int]) -> None:
    """Refuse a table of cosines that is not the one of these rotary positions."""
    side = math.isqrt(table.shape[0])
    if table.ndim == 2 and side * side == table.shape[0] and table.shape[1] % 4 == 0:
        rotary = Rotary(grid, table.shape[1], 0, base=config.base, coordinates=config.coordinates)
        if torch.allclose(table.float(), rotary((side, side), table.device)[0], atol=2e-2):
            return
    raise VitrailError("rope.freqs_cos is not the table of EVA-02, so the rotary positions are of another kind")


def _is_moco(file: Mapping[str, Tensor]) -> bool:
    """Return whether the position table is MoCo-v3's fixed one, with a row of zeros for the class token."""
    table = file.get("pos_embed")
    if table is None or table.ndim != 3 or table.shape[2] % 4 or not table.is_floating_point():
        return False
    side = math.isqrt(max(0, table.shape[1] - 1))
    if not side or side * side != table.shape[1] - 1 or side > 256 or table[0, 0].any():
        return False
    return torch.allclose(table[0, 1:].float(), sincos2d((side, side), table.shape[2], "moco").flatten(0, 1), atol=1e-3)


def _infer_pool(
    file: Mapping[str, Tensor],
    sidecar: Mapping[str, Any],
    args: Mapping[str, Any],
    overrides: Overrides,
    width: int,
    assumed: list[str],
) -> Pool:
    """Infer the pooling: from the pool's or the head's tensors, else the usual one."""
    if "attn_pool.latent" in file:
        return "map"
    recorded = args.get("global_pool", sidecar.get("global_pool"))
    if recorded is not None:
        return apply_model_args(Architecture(), {"global_pool": recorded}).pool
    if "cls_token" not in file:
        return "gap"
    head = file.get("head.weight")
    if head is not None and head.ndim == 2 and head.shape[1] == 2 * width:
        return "cls+register" if "reg_token" in file and file["reg_token"].shape[1] == 1 else "cls+gap"
    pool: Pool = "gap" if "fc_norm.weight" in file else "cls"
    if overrides.pool is None:
        assumed.append(f"the pooling {pool} (the usual one with {'fc_norm' if pool == 'gap' else 'norm'}; pool= overrides it)")
    return pool
