"""Write ``config.json`` of a timm folder, which records what a file of tensors does not, such as the form of the GELU."""

from typing import Any

from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.weights.convert.inspect import unsupported
from vitrail.weights.convert.timm_architectures import ACTIVATIONS, POOLS

# timm takes classes of MLPs by the name of an architecture alone; everything else is an argument.
PLAIN, GATED = "vit_base_patch16_224", "vit_giant_patch14_dinov2"


def config_file(config: ModelConfig, preprocess: Preprocess | None, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return ``config.json``, from which ``timm.create_model("local-dir:FOLDER", pretrained=True)`` builds the model."""
    if not isinstance(config, ViTConfig) or config.stem:
        unsupported("a ResNet or a hybrid in a folder", "timm", "use a file that ends in .safetensors")
    if config.patch_bias == config.embed_norm:
        unsupported("a norm before the blocks with a patch bias, or neither", "timm", "use format='vitrail'")
    if class_names and len(class_names) != config.classes:
        raise VitrailError(f"model.class_names must name all {config.classes} classes, got {len(class_names)} names")
    gated = config.mlp_kind == "swiglu"
    pool = next(theirs for theirs, ours in POOLS.items() if ours == config.pool)
    labels = {"label_names": list(class_names)} if class_names else {}
    return {
        "architecture": GATED if gated else PLAIN,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": pool,
        **labels,
        "model_args": {**_model_args(config, gated), "global_pool": pool},
        "pretrained_cfg": _pretrained_cfg(config, preprocess),
    }


def _model_args(c: ViTConfig, gated: bool) -> dict[str, Any]:
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == c.gelu)
    return {
        "img_size": list(c.image),
        "patch_size": list(c.patch),
        "in_chans": c.channels,
        "num_classes": c.classes,
        "embed_dim": c.width,
        "depth": c.depth,
        "num_heads": c.heads,
        "mlp_ratio": (c.mlp_outputs + 0.5) / c.width,  # timm multiplies and rounds down
        "qkv_bias": c.qkv_bias,
        "qk_norm": c.qk_norm,
        "init_values": c.layer_scale,
        "class_token": c.has_class_token,
        "reg_tokens": c.registers,
        "no_embed_class": c.prefix_tokens > 0 and c.prefix_positions == 0,
        "fc_norm": c.final_norm == "pooled",
        "pre_norm": c.embed_norm,
        **({} if gated else {"act_layer": activation}),
    }


def _pretrained_cfg(c: ViTConfig, preprocess: Preprocess | None) -> dict[str, Any]:
    common = {"num_classes": c.classes, "first_conv": "patch_embed.proj", "classifier": "head", "custom_load": False}
    if preprocess is None:
        return {**common, "input_size": [c.channels, *c.image], "fixed_input_size": True}
    return {
        **common,
        "input_size": [c.channels, *preprocess.crop_size],
        "fixed_input_size": True,
        "interpolation": preprocess.interpolation,
        "crop_pct": preprocess.crop_pct,
        "crop_mode": "squash" if preprocess.squash else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }
