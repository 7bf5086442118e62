"""Bring the tensors of timm's many Vision Transformers, and of projects with similar names, to one set of names.

The set is that of timm's plain model, with one matrix for queries, keys and values and one for gate and value of a SwiGLU.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from vitrail.errors import VitrailError

RENAMES = [
    (r"^(register_tokens|storage_tokens|dist_token)$", "reg_token"),  # DINOv2's, DINOv3's, DeiT's
    (r"\.gamma_([12])$", r".ls\1.gamma"),
    (r"\.attn\.inner_attn_ln\.", ".attn.norm."),  # EVA-02's
    (r"\.mlp\.ffn_ln\.", ".mlp.norm."),
    (r"\.mlp\.w12\.", ".mlp.fc1."),  # DINOv2's SwiGLU
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),  # EVA-02's and DINOv3's
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"(^|\.)mlp\.w3\.", r"\1mlp.fc2."),
    (r"^rel_pos_bias\.", "shared_rel_pos."),  # BEiT's
    (r"\.attn\.relative_position_bias_table$", ".attn.rel_pos.relative_position_bias_table"),
    (r"^freqs$", "rope.freqs"),  # RoPE-ViT's
    (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # DINOv2's in chunks, numbered through
    (r"^linear_head\.", "head."),  # DINOv2's classifier
    (r"^head\.proj\.", "head."),  # open_clip's projection
    (r"^embeds\.proj\.", "patch_embed.proj."),  # NaFlexViT's
    (r"^embeds\.(cls_token|reg_token|pos_embed|norm\.|norm_pre\.)", r"\1"),
]
# Numbers that follow from the config, which some files hold as well.
COMPUTED = re.compile(r"(^|\.)(relative_position_index|rope\.freqs_(cos|sin)|bias_mask|rope_embed\.periods|freqs_t_[xy])$")


def to_timm_names(file: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename and join tensors; the file's own names if two of them would be the same."""
    renamed = {_rename(name): tensor for name, tensor in file.items()}
    if len(renamed) < len(file):
        return dict(file)
    _mask_key_bias(renamed)
    renamed = {name: tensor for name, tensor in renamed.items() if not COMPUTED.search(name)}
    join_qkv(renamed)
    pack_gates(renamed)
    join_heads(renamed)
    fold_patches(renamed)
    if "head.proj.weight" in file and "head.proj.bias" not in file and file["head.proj.weight"].ndim == 2:
        renamed["head.bias"] = torch.zeros(file["head.proj.weight"].shape[0])
    return renamed


def join_qkv(tensors: dict[str, Tensor]) -> None:
    """Join queries, keys and values of each block; without a bias of the keys, the bias is that of queries and values."""
    for name in [name for name in tensors if re.search(r"\.attn\.q(_proj)?\.weight$", name)]:
        block, spelling = re.sub(r"q(_proj)?\.weight$", "", name), name.rpartition("q")[2].partition(".")[0]
        weights = [f"{block}{part}{spelling}.weight" for part in "qkv"]
        if all(part in tensors for part in weights):
            if tensors[weights[1]].shape[0] < tensors[weights[0]].shape[0]:
                raise VitrailError("the file has grouped-query attention, which Vitrail's Vision Transformers do not have")
            tensors[f"{block}qkv.weight"] = _join(tensors, weights)
        biases = [f"{block}{part}{spelling}.bias" for part in "qkv"]
        present = [part for part in biases if part in tensors]
        if len(present) == 3 or present == [biases[0], biases[2]]:
            tensors[f"{block}qkv.bias"] = _join(tensors, present)
    for name in [name for name in tensors if name.endswith(".attn.q_bias")]:
        block = name.removesuffix("q_bias")
        if f"{block}v_bias" in tensors:
            tensors[f"{block}qkv.bias"] = _join(tensors, [name, f"{block}v_bias"])


def pack_gates(tensors: dict[str, Tensor]) -> None:
    """Join gate and value of SwiGLUs that hold them apart, as timm's packed one does."""
    for name in [name for name in tensors if ".mlp.fc1_g." in name]:
        value = name.replace(".fc1_g.", ".fc1_x.")
        if value in tensors:
            tensors[name.replace(".fc1_g.", ".fc1.")] = _join(tensors, [name, value])


def _join(tensors: dict[str, Tensor], names: list[str]) -> Tensor:
    """Take tensors out and concatenate them, if they have one shape; joining whole numbers would make them floats."""
    parts = [tensors.pop(name) for name in names]
    for name, part in zip(names, parts, strict=True):
        if part.shape != parts[0].shape or not part.is_floating_point():
            raise VitrailError(f"{name} must be floating-point and of the shape of {names[0]}, got {list(part.shape)}")
    return torch.cat(parts)


def _rename(name: str) -> str:
    for theirs, timms in RENAMES:
        name = re.sub(theirs, timms, name)
    return name


def _mask_key_bias(tensors: dict[str, Tensor]) -> None:
    """Leave out the bias of the keys where a mask sets it to zero (DINOv3)."""
    for name in [name for name in tensors if name.endswith(".attn.qkv.bias_mask")]:
        bias = tensors.get(name.removesuffix("_mask"))
        mask = tensors.pop(name)
        if bias is None or bias.shape != mask.shape or mask.ndim != 1 or mask.shape[0] % 3:
            raise VitrailError(f"{name} does not fit the bias of queries, keys and values")
        q, k, v = mask.chunk(3)
        if k.any() or not q.all() or not v.all():
            raise VitrailError(f"{name} must mask the bias of the keys alone")
        tensors[name.removesuffix("_mask")] = torch.cat([bias.chunk(3)[0], bias.chunk(3)[2]])


def join_heads(tensors: dict[str, Tensor]) -> None:
    """Join the two heads of a distilled DeiT, whose logits are averaged, to one head on both tokens."""
    names = [f"{head}.{part}" for part in ("weight", "bias") for head in ("head", "head_dist")]
    if not all(name in tensors for name in (*names, "reg_token")):
        return
    class_weight, other_weight, class_bias, other_bias = (tensors.pop(name).float() for name in names)  # a mean in half rounds
    if class_weight.shape != other_weight.shape or class_bias.shape != other_bias.shape:
        raise VitrailError("head and head_dist of a distilled model must have one shape")
    tensors["head.weight"] = torch.cat([class_weight, other_weight], dim=-1) / 2
    tensors["head.bias"] = (class_bias + other_bias) / 2


def fold_patches(tensors: dict[str, Tensor]) -> None:
    """Give the tensors of a model that takes patches as vectors, channels last, the axes of a convolution and of a sequence."""
    weight, table = tensors.get("patch_embed.proj.weight"), tensors.get("pos_embed")
    if weight is None or weight.ndim != 2:
        return
    side = round((weight.shape[1] / 3) ** 0.5)
    if 3 * side**2 != weight.shape[1]:
        raise VitrailError(f"patch_embed.proj.weight must be of square patches with 3 channels, got {list(weight.shape)}")
    tensors["patch_embed.proj.weight"] = weight.reshape(-1, side, side, 3).permute(0, 3, 1, 2)
    if table is not None and table.ndim == 4:
        tensors["pos_embed"] = table.flatten(1, 2)


def has_rms_norms(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether no norm of a block has a bias."""
    return not any(re.fullmatch(r"blocks\.\d+\.norm[12]\.bias", name) for name in tensors)
