"""Choose the timm architecture that a model is written as, and give its tensors the names of that architecture's class.

timm takes classes, such as a norm with its epsilon or an MLP, by the name of an architecture alone; everything else is an
argument, which ``timm_folder`` records.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from vitrail.models.config import ViTConfig
from vitrail.weights.convert.inspect import unsupported
from vitrail.weights.convert.timm_vit import OFFSETS, arrange_rotary_channels

TimmClass = Literal["VisionTransformer", "VisionTransformerDistilled", "Eva", "Beit", "VisionTransformerRelPos"]


@dataclass(frozen=True)
class BaseArchitecture:
    """An architecture, by what its name alone decides."""

    name: str
    timm_class: TimmClass
    norm_eps: float = 1e-6
    norm_kind: Literal["layer", "rms"] = "layer"
    norm: Literal["pre", "branch", "either"] = "pre"
    mlp: Literal["gelu", "packed", "split", "either"] = (
        "gelu"  # packed and split: SwiGLU, with one matrix for both halves or two
    )

    @property
    def is_plain(self) -> bool:
        return self.timm_class in ("VisionTransformer", "VisionTransformerDistilled")


BASES = (  # the first that fits is taken
    BaseArchitecture("vit_base_patch16_224", "VisionTransformer"),
    BaseArchitecture("vit_giant_patch14_dinov2", "VisionTransformer", mlp="packed"),
    BaseArchitecture("vit_base_patch16_clip_224", "VisionTransformer", norm_eps=1e-5),
    BaseArchitecture("vit_base_patch16_rpn_224", "VisionTransformer", norm="branch"),
    BaseArchitecture("test_vit4", "VisionTransformer", norm_kind="rms"),
    BaseArchitecture("aimv2_large_patch14_224", "VisionTransformer", norm_eps=1e-5, norm_kind="rms", mlp="split"),
    BaseArchitecture("deit_base_distilled_patch16_224", "VisionTransformerDistilled"),
    BaseArchitecture("vit_base_patch16_rope_224", "Eva", norm="either", mlp="either"),
    BaseArchitecture("vit_small_patch16_dinov3", "Eva", norm_eps=1e-5, norm="either", mlp="either"),
    BaseArchitecture("beit_base_patch16_224", "Beit", mlp="either"),
    BaseArchitecture("vit_relpos_base_patch16_224", "VisionTransformerRelPos"),
    BaseArchitecture("vit_relpos_base_patch16_rpn_224", "VisionTransformerRelPos", norm="branch"),
)


# What a class is made for: a model with one of these is nearest to a class that has it.
DEFINING = {
    "rotary positions",
    "a relative position bias",
    "no relative position bias",
    "keys without a bias",
    "RMSNorm",
    "a head on the class token and a register",
}


def choose_base(config: ViTConfig) -> BaseArchitecture:
    """Return the architecture that arguments turn into this model; refuse a model that none can, by what the nearest lacks."""

    def distance(base: BaseArchitecture) -> tuple[int, int]:
        missing = missing_features(config, base)
        return len(DEFINING & set(missing)), len(missing)

    base = min(BASES, key=distance)
    missing = missing_features(config, base)
    if missing:
        nearest = f"in {base.name}, the architecture nearest to the model"
        unsupported(f"{' and '.join(missing)} {nearest}", "timm", "use format='vitrail'")
    return base


def missing_features(c: ViTConfig, base: BaseArchitecture) -> list[str]:
    """Name what a model has and an architecture cannot have, whatever its arguments."""
    eva, beit, relpos = (base.timm_class == name for name in ("Eva", "Beit", "VisionTransformerRelPos"))
    distilled = base.timm_class == "VisionTransformerDistilled"
    branch, gated, map_pool = c.norm == "branch", c.mlp_kind == "swiglu", c.pool == "map"
    mixed, coordinates = (c.rotation.mixed, c.rotation.coordinates) if c.rotation else (False, None)
    own_grid = c.position_grid in (None, c.grid)
    table = c.relative_bias is not None and c.relative_bias.kind == "table"
    features = {
        "a stem": c.stem is not None,
        # norms
        f"norms with epsilon {c.norm_eps}": c.norm_eps != base.norm_eps,
        "RMSNorm" if c.norm_kind == "rms" else "layer norms": c.norm_kind != base.norm_kind,
        "post-norm": c.norm == "post",
        "norms at the end of the branches": branch and base.norm == "pre",
        "norms before the branches": c.norm == "pre" and base.norm == "branch",
        "layer scale beside norms at the end of the branches": branch and c.layer_scale is not None,
        "qk-norm": c.qk_norm and (beit or (eva and branch)),
        "a norm before the blocks with a patch bias, or neither": c.patch_bias == c.embed_norm,
        "a norm before the blocks": c.embed_norm and (beit or relpos),
        "a norm of the pixels": c.patch_norm == "both",
        "a norm of the embedded patches": c.patch_norm == "output" and base.mlp != "split",
        "a norm inside attention": c.attention_norm and (beit or relpos),
        "a norm inside the MLP": c.mlp_norm and relpos,
        "no last norm": c.final_norm == "none" and (beit or relpos),
        # BEiT's place of the last norm follows from the pooling
        "this last norm with this pooling": beit and (c.final_norm == "pooled") != (c.pool == "gap"),
        # linear layers
        "a gated MLP": gated and base.mlp == "gelu",
        "an MLP without a gate": not gated and base.mlp in ("packed", "split"),
        # the GELU of a gated model is that of its attention pooling
        f"a GELU in its {c.gelu} form": not base.is_plain and c.gelu != "exact" and (not gated or map_pool),
        "keys without a bias": not c.key_bias and not (eva or beit),
        "keys with a bias": c.qkv_bias and c.key_bias and beit,
        "projections without biases": not c.out_bias and not base.is_plain,
        # positions
        "position embeddings of type relative": c.position == "relative",
        "attention in windows": c.window is not None,
        "relative positions along the axes": c.relative_axes,
        "a position table": c.position != "none" and relpos,
        "no position table": c.position == "none" and base.is_plain,
        "rotary positions": c.rotation is not None and not eva,
        "rotary positions of centres rescaled to another grid": coordinates == "centre" and not own_grid,
        "learned rotary frequencies with other coordinates than the index": mixed
        and (coordinates == "normalised" or not own_grid),
        "a relative position bias": c.relative_bias is not None and not (table and beit) and not relpos,
        "no relative position bias": c.relative_bias is None and relpos,
        "a table of offsets on a grid that is not square": table and beit and c.grid[0] != c.grid[1],
        # tokens and pooling
        "registers without a position and a class token with one": c.position != "none"
        and c.prefix_positions not in (0, c.prefix_tokens),
        "a class token without a position": (beit or distilled) and c.position != "none" and c.prefix_positions == 0,
        "registers": c.registers > 0 and (beit or relpos),
        "no class token": not c.has_class_token and beit,
        "a head on the class token and the mean": c.pool == "cls+gap",
        "a head on the class token and a register": c.pool == "cls+register" and not distilled,
        "no head on a register": c.pool != "cls+register" and distilled,
        "no classifier": not c.classes and distilled,
        f"{c.registers} registers": distilled and c.registers != 1,
        "attention pooling": map_pool and (beit or relpos),
        "attention pooling with a gated MLP": map_pool and gated and base.is_plain,
        "attention pooling with heads or an MLP of its own": map_pool
        and base.is_plain
        and (c.pool_heads not in (None, c.heads) or c.pool_mlp not in (None, c.mlp)),
        "attention pooling without the prefix tokens": map_pool and eva and c.prefix_tokens > 0 and not c.pool_prefix,
        "the pre-logits layer": c.head == "mlp",
    }
    return [feature for feature, is_missing in features.items() if is_missing]


def to_class_names(tensors: Mapping[str, Tensor], c: ViTConfig, base: BaseArchitecture) -> dict[str, Tensor]:
    """Turn the names of ``timm_names`` into those of the architecture's class, and undo what reading does to the values."""
    arranged = dict(tensors)
    if c.rotation and c.rotation.coordinates == "normalised":
        arrange_rotary_channels(arranged, c, "halves", inverse=True)
    return {new: part for name, tensor in arranged.items() for new, part in _split(name, tensor, c, base).items()}


def splits_gate(c: ViTConfig, base: BaseArchitecture) -> bool:
    """Return whether gate and value of the SwiGLUs are two matrices in this class."""
    splits = base.mlp == "split" or base.timm_class == "Beit" or (base.timm_class == "Eva" and c.mlp_norm)
    return c.mlp_kind == "swiglu" and splits


def _split(name: str, tensor: Tensor, c: ViTConfig, base: BaseArchitecture) -> dict[str, Tensor]:
    if base.timm_class == "VisionTransformerDistilled" and name == "head.weight":
        return {
            "head.weight": 2 * tensor[:, : c.width],
            "head_dist.weight": 2 * tensor[:, c.width :],
        }  # its logits are averaged
    if base.timm_class == "VisionTransformerDistilled" and name == "head.bias":
        return {"head.bias": tensor, "head_dist.bias": tensor.clone()}
    if not c.key_bias and name.endswith(".attn.qkv.bias"):
        q, v = (part.clone() for part in tensor.chunk(2))
        return {name.replace("qkv.bias", "q_bias"): q, name.replace("qkv.bias", "v_bias"): v}
    if splits_gate(c, base) and re.match(r"blocks\.\d+\.mlp\.fc1\.", name):
        gate, value = (part.clone() for part in tensor.chunk(2))
        return {name.replace(".fc1.", ".fc1_g."): gate, name.replace(".fc1.", ".fc1_x."): value}
    if base.timm_class == "VisionTransformerDistilled":
        name = "dist_token" if name == "reg_token" else name
    if base.timm_class in ("Eva", "Beit"):
        name = re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name)
    if base.timm_class == "Beit":
        name = name.replace(f".rel_pos.{OFFSETS}", f".{OFFSETS}").replace("shared_rel_pos.", "rel_pos_bias.")
    return {name: tensor}
