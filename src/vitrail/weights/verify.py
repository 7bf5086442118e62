"""Verify a checkpoint: its number of parameters, and its logits against another checkpoint or the library it came from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.config import ModelConfig, ViTConfig, format_size
from vitrail.models.cost import cost
from vitrail.models.variants import SIZES, variant
from vitrail.weights import hub
from vitrail.weights.convert.timm_names import to_timm_names
from vitrail.weights.load import load
from vitrail.weights.read_file import read_file

TOLERANCE = 1e-4
# Fields in which a model differs from timm's plain one, which a file without an architecture is compared with.
BEYOND_PLAIN = (
    *("rotary", "relative_bias", "norm_kind", "patch_norm", "attention_norm", "mlp_norm", "key_bias", "out_bias"),
    *("pool_heads", "pool_mlp", "pool_prefix", "window", "relative_axes"),
)


@dataclass(frozen=True)
class VerifyResult:
    """The largest difference of the logits, and what they were compared with."""

    variant: str  # of the nearest published model
    parameters: int
    published_parameters: int | None  # at this image size and these classes; None: there is no such published model
    reference: str | None  # None: nothing to compare with
    difference: float | None
    tolerance: float
    assumed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.published_parameters in (None, self.parameters) and (
            self.difference is None or self.difference <= self.tolerance
        )


def verify(first: str | Path, second: str | Path | None = None, tolerance: float = TOLERANCE, **options: Any) -> VerifyResult:
    """Compare the number of parameters with the published model's, and the logits on fixed images with those of the second
    checkpoint or, without one, of the library the first came from."""
    path = hub.locate(first)
    model = load(path, **options)
    parameters = sum(weight.numel() for weight in model.parameters())
    reference, reference_name = (load(second, **options), str(second)) if second is not None else _reference_model(model, path)
    difference = None if reference is None else _max_difference(model, reference)
    assumed = model.load_report.assumed
    return VerifyResult(
        nearest_variant(model.config),
        parameters,
        published_parameters(model.config),
        reference_name,
        difference,
        tolerance,
        assumed,
    )


def published_parameters(config: ModelConfig) -> int | None:
    """Return the parameter count of the nearest published model at this size and these classes; None if there is none."""
    try:
        published_config = variant(
            nearest_variant(config), image=config.image, channels=config.channels, classes=config.classes
        )
    except VitrailError:
        return None
    compared_fields = (
        "registers",
        "pool",
        "class_token",
        "head",
        "norm",
        "final_norm",
        "position",
        "position_prefix",
        "layer_scale",
        "qk_norm",
        "qkv_bias",
        "patch_bias",
        "embed_norm",
        "mlp_kind",
        *BEYOND_PLAIN,
    )
    if isinstance(config, ViTConfig) and any(
        getattr(config, field) != getattr(published_config, field) for field in compared_fields
    ):
        return None
    return cost(published_config).parameters


def fixed_images(config: ModelConfig, count: int = 4) -> Tensor:
    """Return deterministic test images: smooth waves from -1 to 1, the same on every machine."""
    height, width = config.image
    y, x = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)[None]
    waves = [
        torch.sin((index + 1) * math.pi * x + channel) * torch.cos((count - index) * math.pi * y - channel)
        for index in range(count)
        for channel in range(config.channels)
    ]
    return torch.stack(waves).reshape(count, config.channels, height, width)


def nearest_variant(config: ModelConfig) -> str:
    """Return the model's common name, such as ``B/16`` or ``R50+L/32``."""
    if not isinstance(config, ViTConfig):
        return f"R{3 * sum(config.stages) + 2}x{config.width // 64}"
    sizes = [name for name, size in SIZES.items() if size == (config.width, config.depth, config.mlp, config.heads)]
    stem = f"R{3 * sum(config.stem.stages) + 2 if config.stem.stages else ''}+" if config.stem else ""
    size = sizes[0] if sizes else f"{config.width} wide, {config.depth} deep"
    stride = (
        format_size(config.patch_stride) if config.patch_stride[0] != config.patch_stride[1] else str(config.patch_stride[0])
    )
    return f"{stem}{size}/{stride}"


def _max_difference(model: nn.Module, reference: nn.Module) -> float:
    config: ModelConfig = model.config  # type: ignore[assignment]
    images = fixed_images(config)
    with torch.inference_mode():
        first, second = model(images), _output_tensor(reference(images), config)
    if first.shape != second.shape:
        raise VitrailError(f"outputs of shapes {list(first.shape)} and {list(second.shape)} cannot be compared")
    return (first - second).abs().max().item()


def _output_tensor(output: Any, config: ModelConfig) -> Tensor:
    """Return the tensor of a model's output; transformers' have named fields, and ViTMAE's encoder returns unpooled tokens."""
    for name in ("logits", "image_embeds", "pooler_output"):
        if isinstance(value := getattr(output, name, None), Tensor):
            return value
    if isinstance(output, Tensor):
        return output
    tokens: Tensor = output.last_hidden_state
    if not isinstance(config, ViTConfig) or config.pool != "gap":
        return tokens[:, 0]
    return tokens[:, config.prefix_tokens :].mean(dim=1)


def _reference_model(model: Model, path: Path) -> tuple[nn.Module | None, str | None]:
    """Build the model in the library the file came from, if it is installed, with the file's own weights."""
    origin = model.load_report.origin
    builders = {"timm": _build_timm, "huggingface": _build_huggingface, "torchvision": _build_torchvision}
    if origin not in builders or not find_spec({"huggingface": "transformers"}.get(origin, origin)):
        return None, None
    if origin == "timm" and not read_file(path).sidecar.get("architecture") and _is_beyond_plain(model.config):
        return None, None  # no library has a model that can be built from such a file alone
    declare_torchvision_operators()
    try:
        return builders[origin](model, path).eval(), origin
    except VitrailError:
        raise
    except Exception as error:  # each library raises its own exceptions, and a refusal is a result too
        reason = " ".join(str(error).split()[:40]) or type(error).__name__
        raise VitrailError(f"{origin} cannot load {path}: {reason}; give a second checkpoint to compare with") from None


def _is_beyond_plain(config: ModelConfig) -> bool:
    defaults = {field.name: field.default for field in fields(ViTConfig)}
    return isinstance(config, ViTConfig) and (
        config.pool == "cls+register" or any(getattr(config, name) != defaults[name] for name in BEYOND_PLAIN)
    )


_torchvision_library: Any = None


def declare_torchvision_operators() -> None:
    """Declare torchvision operators that PyPI's build cannot load with a CPU build of torch; two are enough."""
    global _torchvision_library
    if _torchvision_library is None and not _has_operators():
        _torchvision_library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _torchvision_library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _has_operators() -> bool:
    try:
        return bool(torch.ops.torchvision.nms)
    except (AttributeError, RuntimeError):
        return False


def _build_timm(model: Model, path: Path) -> nn.Module:
    """Build timm's model by the architecture named in config.json, else by the config we inferred."""
    import timm

    sidecar = read_file(path).sidecar
    architecture = sidecar.get("architecture")
    if isinstance(architecture, str):
        options: dict[str, Any] = {**(sidecar.get("model_args") or {}), "num_classes": model.config.classes}
        if isinstance(model.config, ViTConfig):
            options["img_size"] = model.config.image
        build = timm.models.model_entrypoint(architecture.partition(".")[0])  # create_model would leave out what is null
        return _load_strict(build(**options), _used_tensors(model, path))
    tensors = to_timm_names(_used_tensors(model, path))
    config = model.config
    if not isinstance(config, ViTConfig):
        return _load_strict(
            timm.create_model(f"resnetv2_{nearest_variant(config)[1:]}_bit", num_classes=config.classes), tensors
        )
    if config.stem:
        names = {
            "R+Ti": "tiny_r_s16_p8",
            "R26+S": "small_r26_s32",
            "R26+B": "base_r26_s32",
            "R50+B": "base_r50_s16",
            "R50+L": "large_r50_s32",
        }
        key = nearest_variant(config).split("/")[0]
        if key not in names:
            raise VitrailError(f"timm has no hybrid {nearest_variant(config)} to compare with; give a second checkpoint")
        reference = timm.create_model(f"vit_{names[key]}_224", img_size=config.image, num_classes=config.classes)
        return _load_strict(reference, tensors)
    gelu = {"exact": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}[config.gelu]
    gated = config.mlp_kind == "swiglu"
    reference = timm.models.vision_transformer.VisionTransformer(
        img_size=config.image,
        patch_size=config.patch,
        in_chans=config.channels,
        num_classes=config.classes,
        global_pool={"cls": "token", "gap": "avg", "map": "map"}.get(config.pool, ""),
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=(config.mlp_outputs + 0.5) / config.width,  # timm multiplies and rounds down
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        init_values=config.layer_scale,
        class_token=config.has_class_token,
        reg_tokens=config.registers,
        no_embed_class=config.prefix_tokens > 0 and config.prefix_positions == 0,
        fc_norm=config.final_norm == "pooled",
        final_norm=config.final_norm != "none",
        pre_norm=config.embed_norm,
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
        mlp_layer=timm.layers.SwiGLUPacked if gated else timm.layers.Mlp,
        act_layer="silu" if gated else gelu,
    )
    return _load_strict(reference, tensors)


def _used_tensors(model: Model, path: Path) -> dict[str, Tensor]:
    """Return the file's tensors except those reported as unused; all of them must match the other library's model."""
    return {name: tensor for name, tensor in read_file(path).tensors.items() if name not in model.load_report.unused}


def _load_strict(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    model.load_state_dict(dict(tensors), strict=True)
    return model


def _build_huggingface(model: Model, path: Path) -> nn.Module:
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()  # it would list unused weights, such as a decoder
    auto_class = transformers.AutoModelForImageClassification if model.config.classes else transformers.AutoModel
    architectures = read_file(path).sidecar.get("architectures")
    if architectures == ["CLIPVisionModelWithProjection"]:  # which no auto class builds
        auto_class = transformers.CLIPVisionModelWithProjection
    reference: Any = auto_class.from_pretrained(path if path.is_dir() else path.parent, local_files_only=True)
    if hasattr(reference.config, "mask_ratio"):
        reference.config.mask_ratio = 0.0  # otherwise ViTMAE's encoder masks patches
    return cast(nn.Module, reference)


def _build_torchvision(model: Model, path: Path) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer  # type: ignore[import-untyped]

    config = model.config
    assert isinstance(config, ViTConfig)
    reference = VisionTransformer(
        image_size=config.image[0],
        patch_size=config.patch[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp,
        num_classes=config.classes,
        representation_size=(config.head_hidden or config.width) if config.head == "mlp" else None,
    )
    return _load_strict(reference, _used_tensors(model, path))
