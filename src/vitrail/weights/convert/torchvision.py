"""Convert torchvision's Vision Transformers."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.weights.convert import detect
from vitrail.weights.convert.detect import Found, Wishes, refuse
from vitrail.weights.convert.link import Link, affine, moved, positions, read, same


def matches(names: Mapping[str, Tensor]) -> bool:
    return "encoder.pos_embedding" in names and "conv_proj.weight" in names


def find(file: Mapping[str, Tensor], side: Mapping[str, Any], wishes: Wishes) -> Found:
    assumed: list[str] = []
    width, channels, high, wide = detect.shape(file, "conv_proj.weight", 4)
    depth = detect.count((name.replace("encoder_layer_", "") for name in file), "encoder.layers.")
    first = "encoder.layers.encoder_layer_0"
    mlp_name = "mlp.0" if f"{first}.mlp.0.weight" in file else "mlp.linear_1"
    mlp = detect.shape(file, f"{first}.{mlp_name}.weight", 2)[0]
    grid, _ = detect.grid(detect.shape(file, "encoder.pos_embedding", 3)[1], [1], wishes, assumed)
    hidden = file["heads.pre_logits.weight"].shape[0] if "heads.pre_logits.weight" in file else None
    config = ViTConfig(
        width=width,
        depth=depth,
        mlp=mlp,
        heads=detect.heads(width, depth, mlp, wishes, assumed),
        patch=(high, wide),
        image=(grid[0] * high, grid[1] * wide),
        channels=channels,
        classes=file["heads.head.weight"].shape[0] if "heads.head.weight" in file else 0,
        head="mlp" if hidden else "linear",
        head_width=hidden if hidden != width else None,
        resize="torchvision",
        gelu=detect.gelu("exact", wishes, assumed),
    )
    state, left = read(links(config, old=mlp_name != "mlp.0"), file)
    if left:
        raise VitrailError(f"the file has {', '.join(left[:4])}, which Vitrail's Vision Transformers do not have")
    preprocess = Preprocess(
        config.image, crop=0.875, interpolation="bilinear", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )
    return Found("torchvision", config, state, left, assumed, preprocess)


def links(c: ModelConfig, old: bool = False) -> list[Link]:
    """Return the maps of all tensors; ``old`` selects the MLP names before torchvision 0.13."""
    assert isinstance(c, ViTConfig)
    made = [
        moved("class_token", "cls", "1 1 d -> d"),
        *affine("conv_proj", "embed.project"),
        positions("encoder.pos_embedding", c),
    ]
    for layer in range(c.depth):
        theirs, ours = f"encoder.layers.encoder_layer_{layer}", f"blocks.{layer}"
        made += affine(f"{theirs}.ln_1", f"{ours}.norm1") + affine(f"{theirs}.ln_2", f"{ours}.norm2")
        made += [same(f"{theirs}.self_attention.in_proj_{part}", f"{ours}.attention.qkv.{part}") for part in ("weight", "bias")]
        made += affine(f"{theirs}.self_attention.out_proj", f"{ours}.attention.out")
        up, down = ("linear_1", "linear_2") if old else ("0", "3")
        made += affine(f"{theirs}.mlp.{up}", f"{ours}.mlp.up") + affine(f"{theirs}.mlp.{down}", f"{ours}.mlp.down")
    made += affine("encoder.ln", "norm")
    if c.head == "mlp":
        made += affine("heads.pre_logits", "head.0")
    if c.classes:
        made += affine("heads.head", "head.2" if c.head == "mlp" else "head")
    return made


def check(config: ModelConfig) -> None:
    if not isinstance(config, ViTConfig) or config.stem:
        refuse("a ResNet or a hybrid", "torchvision", "use format='timm'")
    plain = config.pool == "cls" and not config.registers and config.norm == "pre" and config.norm_at == "tokens"
    if not plain or config.position_covers == "none":
        refuse("anything but a class token with a position and pre-norm", "torchvision", "use format='timm'")
    if config.layer_scale is not None or config.qk_norm or not config.qkv_bias:
        refuse("layer scale, qk-norm or q, k, v without bias", "torchvision", "use format='timm'")
    if config.gelu != "exact":
        refuse("a GELU in its tanh form (it assumes the exact one)", "torchvision", "use format='huggingface'")
    if config.epsilon != 1e-6:
        refuse(f"layer norms with epsilon {config.epsilon} (it assumes 1e-6)", "torchvision", "use format='huggingface'")
    if config.image[0] != config.image[1] or config.patch[0] != config.patch[1]:
        refuse("images or patches that are not square", "torchvision", "use format='timm'")
    if config.channels != 3:
        refuse(f"images of {config.channels} channels", "torchvision", "use format='timm'")
    if not config.classes:
        refuse("a model without a classifier", "torchvision", "use format='timm'")
