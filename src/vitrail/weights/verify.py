"""Verify a checkpoint: its number of parameters, and its logits against another checkpoint or the library it came from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitrail.errors import VitrailError
from vitrail.models.build import Model
from vitrail.models.cost import cost
from vitrail.models.settings import ModelConfig, ViTConfig, times
from vitrail.models.variants import SIZES, variant
from vitrail.weights import hub
from vitrail.weights.files import read_file
from vitrail.weights.load import load

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Verdict:
    """The largest difference of the logits, and what they were compared with."""

    name: str  # of the nearest published model
    parameters: int
    expected: int | None  # of that model at this image size and these classes; None: there is no such published model
    against: str | None  # None: nothing to compare with
    difference: float | None
    tolerance: float
    assumed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.expected in (None, self.parameters) and (self.difference is None or self.difference <= self.tolerance)


def verify(first: str | Path, second: str | Path | None = None, tolerance: float = TOLERANCE, **options: Any) -> Verdict:
    """Compare the number of parameters with the published model's, and the logits on fixed images with those of the second
    checkpoint or, without one, of the library the first came from."""
    path = hub.fetch(str(first)) if str(first).startswith("hf:") else Path(first)
    model = load(path, **options)
    parameters = sum(weight.numel() for weight in model.parameters())
    other, name = (load(second, **options), str(second)) if second is not None else _peer(model, path)
    difference = None if other is None else _difference(model, other)
    assumed = model.report.assumed
    return Verdict(label(model.config), parameters, published(model.config), name, difference, tolerance, assumed)


def published(config: ModelConfig) -> int | None:
    """Return the parameter count of the nearest published model at this size and these classes; None if there is none."""
    try:
        named = variant(label(config), image=config.image, channels=config.channels, classes=config.classes)
    except VitrailError:
        return None
    plain = (
        "registers",
        "pool",
        "class_token",
        "head",
        "norm",
        "norm_at",
        "position",
        "position_covers",
        "layer_scale",
        "qk_norm",
    )
    if isinstance(config, ViTConfig) and any(getattr(config, field) != getattr(named, field) for field in plain):
        return None
    return cost(named).parameters


def fixed_pictures(config: ModelConfig, count: int = 4) -> Tensor:
    """Return deterministic test images: smooth waves from -1 to 1, the same on every machine."""
    high, wide = config.image
    y, x = torch.linspace(-1, 1, high)[:, None], torch.linspace(-1, 1, wide)[None]
    waves = [
        torch.sin((index + 1) * math.pi * x + channel) * torch.cos((count - index) * math.pi * y - channel)
        for index in range(count)
        for channel in range(config.channels)
    ]
    return torch.stack(waves).reshape(count, config.channels, high, wide)


def label(config: ModelConfig) -> str:
    """Return the model's common name, such as ``B/16`` or ``R50+L/32``."""
    if not isinstance(config, ViTConfig):
        return f"R{3 * sum(config.stages) + 2}x{config.width // 64}"
    sizes = [name for name, size in SIZES.items() if size == (config.width, config.depth, config.mlp, config.heads)]
    stem = f"R{3 * sum(config.stem.stages) + 2 if config.stem.stages else ''}+" if config.stem else ""
    size = sizes[0] if sizes else f"{config.width} wide, {config.depth} deep"
    stride = times(config.stride) if config.stride[0] != config.stride[1] else str(config.stride[0])
    return f"{stem}{size}/{stride}"


def _difference(one: nn.Module, two: nn.Module) -> float:
    config: ModelConfig = one.config  # type: ignore[assignment]
    images = fixed_pictures(config)
    with torch.inference_mode():
        first, second = one(images), _answer(two(images), getattr(config, "pool", "cls"))
    if first.shape != second.shape:
        raise VitrailError(f"outputs of shapes {list(first.shape)} and {list(second.shape)} cannot be compared")
    return (first - second).abs().max().item()


def _answer(output: Any, pool: str) -> Tensor:
    """Return the tensor of a model's output; transformers' have named fields, and ViTMAE's encoder returns unpooled tokens."""
    for name in ("logits", "pooler_output"):
        if isinstance(found := getattr(output, name, None), Tensor):
            return found
    if isinstance(output, Tensor):
        return output
    tokens: Tensor = output.last_hidden_state
    return tokens[:, 1:].mean(dim=1) if pool == "gap" else tokens[:, 0]


def _peer(model: Model, path: Path) -> tuple[nn.Module | None, str | None]:
    """Build the model in the library the file came from, if it is installed, with the file's own weights."""
    origin = model.report.origin
    makers = {"timm": _timm, "huggingface": _huggingface, "torchvision": _torchvision}
    if origin not in makers or not find_spec({"huggingface": "transformers"}.get(origin, origin)):
        return None, None
    declare_operators()
    try:
        return makers[origin](model, path).eval(), origin
    except VitrailError:
        raise
    except Exception as error:  # each library raises its own exceptions, and a refusal is a result too
        reason = " ".join(str(error).split()[:40]) or type(error).__name__
        raise VitrailError(f"{origin} cannot load {path}: {reason}; give a second checkpoint to compare with") from None


_library: Any = None


def declare_operators() -> None:
    """Declare torchvision operators that PyPI's build cannot load with a CPU build of torch; two are enough."""
    global _library
    if _library is None and not _operators_there():
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _operators_there() -> bool:
    try:
        return bool(torch.ops.torchvision.nms)
    except (AttributeError, RuntimeError):
        return False


def _timm(model: Model, path: Path) -> nn.Module:
    """Build timm's model by the architecture named in config.json, else by the config we inferred."""
    import timm

    architecture = read_file(path).side.get("architecture")
    if isinstance(architecture, str):
        size: dict[str, Any] = {"img_size": model.config.image} if isinstance(model.config, ViTConfig) else {}
        return _strict(timm.create_model(architecture, num_classes=model.config.classes, **size), _file(model, path))
    tensors = _file(model, path)
    config = model.config
    if not isinstance(config, ViTConfig):
        return _strict(timm.create_model(f"resnetv2_{label(config)[1:]}_bit", num_classes=config.classes), tensors)
    if config.stem:
        names = {
            "R+Ti": "tiny_r_s16_p8",
            "R26+S": "small_r26_s32",
            "R26+B": "base_r26_s32",
            "R50+B": "base_r50_s16",
            "R50+L": "large_r50_s32",
        }
        key = label(config).split("/")[0]
        if key not in names:
            raise VitrailError(f"timm has no hybrid {label(config)} to compare with; give a second checkpoint")
        made = timm.create_model(f"vit_{names[key]}_224", img_size=config.image, num_classes=config.classes)
        return _strict(made, tensors)
    made = timm.models.vision_transformer.VisionTransformer(
        img_size=config.image,
        patch_size=config.patch,
        in_chans=config.channels,
        num_classes=config.classes,
        global_pool={"cls": "token", "gap": "avg", "map": "map"}[config.pool],  # type: ignore[arg-type]
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.heads,
        mlp_ratio=(config.mlp + 0.5) / config.width,  # timm multiplies and rounds down
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        init_values=config.layer_scale,
        class_token=config.has_class_token,
        reg_tokens=config.registers,
        no_embed_class=config.prefix > 0 and config.covered == 0,
        fc_norm=config.norm_at == "pooled",
    )
    return _strict(made, tensors)


def _file(model: Model, path: Path) -> dict[str, Tensor]:
    """Return the file's tensors except those reported as unused; all of them must match the other library's model."""
    return {name: tensor for name, tensor in read_file(path).tensors.items() if name not in model.report.left}


def _strict(made: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    made.load_state_dict(dict(tensors), strict=True)
    return made


def _huggingface(model: Model, path: Path) -> nn.Module:
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()  # it would list unused weights, such as a decoder
    maker = transformers.AutoModelForImageClassification if model.config.classes else transformers.AutoModel
    made: Any = maker.from_pretrained(path if path.is_dir() else path.parent, local_files_only=True)
    if hasattr(made.config, "mask_ratio"):
        made.config.mask_ratio = 0.0  # otherwise ViTMAE's encoder masks patches
    return cast(nn.Module, made)


def _torchvision(model: Model, path: Path) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer  # type: ignore[import-untyped]

    config = model.config
    assert isinstance(config, ViTConfig)
    made = VisionTransformer(
        image_size=config.image[0],
        patch_size=config.patch[0],
        num_layers=config.depth,
        num_heads=config.heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp,
        num_classes=config.classes,
        representation_size=(config.head_width or config.width) if config.head == "mlp" else None,
    )
    return _strict(made, _file(model, path))
