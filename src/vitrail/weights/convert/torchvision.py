"""Convert torchvision's Vision Transformers."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides, require_plain_vit, unsupported
from vitrail.weights.convert.tensor_map import TensorMap, affine, copy, import_tensors, permute, position_table


def matches(names: Mapping[str, Tensor]) -> bool:
    return "encoder.pos_embedding" in names and "conv_proj.weight" in names


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    assumed: list[str] = []
    width, channels, patch_height, patch_width = inspect.require_shape(file, "conv_proj.weight", 4)
    depth = inspect.count_layers((name.replace("encoder_layer_", "") for name in file), "encoder.layers.")
    first = "encoder.layers.encoder_layer_0"
    mlp_name = "mlp.0" if f"{first}.mlp.0.weight" in file else "mlp.linear_1"
    mlp = inspect.require_shape(file, f"{first}.{mlp_name}.weight", 2)[0]
    rows = inspect.require_shape(file, "encoder.pos_embedding", 3)[1]
    grid, _ = inspect.infer_grid(rows, [1], overrides, assumed, stride=(patch_height, patch_width))
    hidden = file["heads.pre_logits.weight"].shape[0] if "heads.pre_logits.weight" in file else None
    config = ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=inspect.infer_heads(width, depth, mlp, overrides, assumed),
        patch=(patch_height, patch_width),
        image=(grid[0] * patch_height, grid[1] * patch_width),
        channels=channels,
        classes=file["heads.head.weight"].shape[0] if "heads.head.weight" in file else 0,
        head="mlp" if hidden else "linear",
        head_hidden=hidden if hidden != width else None,
        position_resize="torchvision",
        gelu=inspect.infer_gelu("exact", overrides, assumed),
    )
    state, unknown = import_tensors(tensor_maps(config, old=mlp_name != "mlp.0"), file)
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
    preprocess = Preprocess(
        config.image, crop_pct=0.875, interpolation="bilinear", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )
    return ConvertedCheckpoint("torchvision", config, state, unknown, assumed, preprocess)


def tensor_maps(c: ModelConfig, old: bool = False) -> list[TensorMap]:
    """Return the maps of all tensors; ``old`` selects the MLP names before torchvision 0.13."""
    assert isinstance(c, ViTConfig)
    maps = [
        permute("class_token", "cls", "1 1 d -> d"),
        *affine("conv_proj", "embed.project"),
        position_table("encoder.pos_embedding", c),
    ]
    for layer in range(c.depth):
        theirs, ours = f"encoder.layers.encoder_layer_{layer}", f"blocks.{layer}"
        maps += affine(f"{theirs}.ln_1", f"{ours}.norm1") + affine(f"{theirs}.ln_2", f"{ours}.norm2")
        maps += [copy(f"{theirs}.self_attention.in_proj_{part}", f"{ours}.attention.qkv.{part}") for part in ("weight", "bias")]
        maps += affine(f"{theirs}.self_attention.out_proj", f"{ours}.attention.out")
        up, down = ("linear_1", "linear_2") if old else ("0", "3")
        maps += affine(f"{theirs}.mlp.{up}", f"{ours}.mlp.up") + affine(f"{theirs}.mlp.{down}", f"{ours}.mlp.down")
    maps += affine("encoder.ln", "norm")
    if c.head == "mlp":
        maps += affine("heads.pre_logits", "head.0")
    if c.classes:
        maps += affine("heads.head", "head.2" if c.head == "mlp" else "head")
    return maps


def check_supported(config: ModelConfig) -> None:
    config = require_plain_vit(config, "torchvision")
    if config.layer_scale is not None or config.qk_norm or not config.qkv_bias:
        unsupported("layer scale, qk-norm or q, k, v without bias", "torchvision", "use format='timm'")
    if config.gelu != "exact":
        unsupported("a GELU in its tanh form (it assumes the exact one)", "torchvision", "use format='huggingface'")
    if config.norm_eps != 1e-6:
        unsupported(f"layer norms with epsilon {config.norm_eps} (it assumes 1e-6)", "torchvision", "use format='huggingface'")
    if config.image[0] != config.image[1] or config.patch[0] != config.patch[1]:
        unsupported("images or patches that are not square", "torchvision", "use format='timm'")
    if config.channels != 3:
        unsupported(f"images of {config.channels} channels", "torchvision", "use format='timm'")
