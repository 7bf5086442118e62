"""Convert timm's Vision Transformers, whose names DeiT, DINO, BEiT and EVA share, its hybrids and its BiT ResNets."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.data.preprocess import Fit, Preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, Pair, ResNetConfig
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides, unsupported
from vitrail.weights.convert.tensor_map import TensorMap, import_tensors
from vitrail.weights.convert.timm_architectures import ORIGINS, Architecture, known_architecture
from vitrail.weights.convert.timm_arguments import apply_model_args, check_model_args
from vitrail.weights.convert.timm_bare import bare_facts, bare_origin, check_bare
from vitrail.weights.convert.timm_convolutions import infer_resnet, resnet_maps
from vitrail.weights.convert.timm_names import to_timm_names
from vitrail.weights.convert.timm_vit import convert_vit, has_gated_mlp, vit_maps

# Tensors in published files that can be ignored without changing what the encoder computes.
IGNORED = re.compile(
    r"(decoder|mask_token|last_layer|prototypes|head\.(mlp|last_layer|\d+)|projection_head|predictor|^lm_head|^fc\.|^projectors\.|"
    r"^local_cls_norm)"
)
# How timm names what is done to an image of another aspect ratio.
CROP_MODES: dict[Fit, str] = {"crop": "center", "pad": "border", "stretch": "squash"}
# Tensors of models that compute something else, and the feature that Vitrail does not have.
MISSING_FEATURES = {
    r"^blocks\.0\.(attns|ffns|in_proj|mlp_out_proj)\.": "parallel blocks",
    r"^blocks\.0\.attn\.lambda": "differential attention",
    r"^blocks\.0\.attn\.rel_pos_[hw]$": "a neck of convolutions (SAM)",
    r"^patch_embed\.backbone\..*running_mean$": "a stem with batch norm",
    r"^pos_embed_[xy]$": "a factorised position table",
}


def matches(names: Mapping[str, Tensor]) -> bool:
    return any(name in names for name in ("patch_embed.proj.weight", "embeds.proj.weight", "stem.conv.weight"))


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    if "auto_map" in sidecar:
        raise VitrailError("config.json would execute its own code (auto_map), which is never done")
    assumed: list[str] = []
    pretrained_cfg = sidecar.get("pretrained_cfg", sidecar) if isinstance(sidecar.get("pretrained_cfg", sidecar), dict) else {}
    args, origin = _model_args(sidecar), _named_origin(sidecar)
    config: ModelConfig
    if "stem.conv.weight" in file:
        config = infer_resnet(file, _recorded_size(pretrained_cfg, {}), args, sidecar.get("architecture"))
        state, unused = import_tensors(resnet_maps(config), file)
    else:
        if _is_named(sidecar):
            known_architecture(sidecar["architecture"])  # before the tensors: a missing feature is named by its architecture
        tensors = to_timm_names(file)
        _check_tensors(tensors)
        origin = origin if _is_named(sidecar) else bare_origin(file, tensors, sidecar)
        facts = _facts(file, tensors, sidecar, args, overrides, origin, assumed)
        config, state, unused = convert_vit(tensors, facts, _recorded_size(pretrained_cfg, args), overrides, assumed)
        check_model_args(args, config)
        if config.pool == "cls+register" and not config.classes:
            assumed.append("the class token and the distillation token, concatenated (timm without a classifier averages them)")
    unknown = [name for name in unused if not IGNORED.search(name)]
    if unknown:
        raise VitrailError(f"the file has {', '.join(unknown[:4])}, which Vitrail's Vision Transformers do not have")
    return ConvertedCheckpoint(
        "timm",
        config,
        state,
        unused,
        assumed,
        _preprocess(pretrained_cfg, config, origin, assumed),
        _class_names(sidecar, config.classes),
    )


def tensor_maps(config: ModelConfig) -> list[TensorMap]:
    return resnet_maps(config) if isinstance(config, ResNetConfig) else vit_maps(config)


def check_supported(config: ModelConfig) -> None:
    """Refuse a model that a file cannot represent; a folder holds more (``timm_writer``)."""
    if isinstance(config, ResNetConfig):
        if (config.standardise, config.standardise_eps, config.norm_eps) != ("variance", 1e-8, 1e-5):
            unsupported("other epsilons than its own", "timm", "use format='vitrail'")
        return
    stem = config.stem
    if stem and (stem.standardise, stem.standardise_eps, stem.norm_eps) != ("variance", 1e-8, 1e-5):
        unsupported("a stem with the official epsilons", "timm", "use format='official'")
    inspect.refuse_published_features(config, "timm", "name a folder, whose config.json may record it")
    if config.norm_eps != 1e-6:
        folder = "name a folder, whose config.json records it, or " if config.norm_eps == 1e-5 else ""
        unsupported(
            f"layer norms with epsilon {config.norm_eps} (it assumes 1e-6)", "timm", f"{folder}use format='huggingface'"
        )
    if config.norm == "post":
        unsupported("post-norm", "timm", "use format='vitrail'")
    if config.pool == "cls+gap":
        unsupported("a head on the class token and the mean", "timm", "use format='vitrail'")
    if config.norm == "branch" or config.final_norm == "none":
        unsupported("norms at the end of the branches or no last norm in a file", "timm", "name a folder")
    if config.head == "mlp":
        unsupported("the pre-logits layer", "timm", "use format='official' or 'torchvision'")
    if config.prefix_positions not in (0, config.prefix_tokens):
        unsupported("registers without a position and a class token with one", "timm", "use format='vitrail'")


def _model_args(sidecar: Mapping[str, Any]) -> Mapping[str, Any]:
    args = sidecar.get("model_args")
    if args is not None and not isinstance(args, dict):
        raise VitrailError(f"model_args in config.json must be an object, got {str(args)[:40]!r}")
    return args or {}


def _is_named(sidecar: Mapping[str, Any]) -> bool:
    return sidecar.get("architecture") is not None


def _named_origin(sidecar: Mapping[str, Any]) -> str:
    """Return the project whose weights timm converted, by the architecture's name."""
    name = str(sidecar.get("architecture"))
    return next((origin for pattern, origin in ORIGINS.items() if re.search(pattern, name)), "timm")


def _facts(
    file: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    sidecar: Mapping[str, Any],
    args: Mapping[str, Any],
    overrides: Overrides,
    origin: str,
    assumed: list[str],
) -> Architecture:
    """Return what the tensors do not show: by the caller, ``model_args``, the architecture's name, or assumed."""
    gated = has_gated_mlp(tensors)
    if _is_named(sidecar):
        facts = known_architecture(sidecar["architecture"])
        if sidecar.get("global_pool"):
            facts = apply_model_args(facts, {"global_pool": sidecar["global_pool"]})
    else:
        check_bare(file, tensors, overrides, origin)
        facts = bare_facts(file, tensors, sidecar, overrides, origin, assumed)
    facts = apply_model_args(facts, {name: value for name, value in args.items() if name != "act_layer" or not gated})
    _check_gate(facts, gated, args.get("act_layer", "silu"))
    if gated and not _is_named(sidecar):
        assumed.append("SwiGLU (the gated MLP of published models: SiLU of the first half of fc1)")
    if "attn_pool.latent" in tensors:
        facts = replace(facts, pool="map")
    elif facts.pool == "map":
        raise VitrailError("config.json says global_pool='map', but the file lacks attn_pool.latent")
    if facts.pool == "map" and gated and not facts.is_eva:
        raise VitrailError(
            "the file has attention pooling with a SiLU, as timm gives it to a model with gated MLPs, which Vitrail's Vision "
            "Transformers do not have"
        )
    return replace(
        facts,
        heads=overrides.heads or facts.heads,
        gelu=overrides.gelu or facts.gelu,
        pool=overrides.pool or facts.pool,
    )


def _check_gate(facts: Architecture, gated: bool, activation: Any) -> None:
    """Refuse a gated MLP that is not a SwiGLU, and a plain one where the architecture has a SwiGLU."""
    if facts.gated and not gated:
        raise VitrailError("config.json describes a model with gated MLPs, but those of the weights have no gate")
    if gated and activation != "silu":  # null is timm's default, a GELU
        raise VitrailError(
            f"act_layer in config.json must be silu with a gated MLP, got {str(activation)[:40]!r}; a gate with another "
            "activation is one that Vitrail's Vision Transformers do not have"
        )


def _check_tensors(file: Mapping[str, Tensor]) -> None:
    """Refuse models with timm's tensor names that compute something else, by the feature that is missing."""
    for pattern, feature in MISSING_FEATURES.items():
        if any(re.search(pattern, name) for name in file):
            raise VitrailError(f"the file has {feature}, which Vitrail's Vision Transformers do not have")
    up, down = file.get("blocks.0.mlp.fc1.weight"), file.get("blocks.0.mlp.fc2.weight")
    if "patch_embed.proj.bias" not in file and "norm_pre.weight" not in file and "patch_embed.proj.weight" in file:
        raise VitrailError("the file lacks patch_embed.proj.bias")
    if up is None or down is None:
        raise VitrailError("the file has no blocks.0.mlp.fc1.weight: another kind of MLP, or not a Vision Transformer")


def _recorded_size(pretrained_cfg: Mapping[str, Any], args: Mapping[str, Any]) -> Pair | None:
    """Return the image size that config.json records: of the model, else of its preprocessing."""
    size = args.get("img_size")
    if size is None:
        size = pretrained_cfg.get("input_size")
        size = size[1:] if isinstance(size, list) and len(size) == 3 else None
    sides = [size, size] if isinstance(size, int) else size
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        return None
    return sides[0], sides[1]


def _preprocess(pretrained_cfg: Mapping[str, Any], config: ModelConfig, origin: str, assumed: list[str]) -> Preprocess:
    if not {"mean", "std", "interpolation"} <= set(pretrained_cfg):
        return inspect.assume_preprocess(origin, config, assumed)
    fits = {mode: fit for fit, mode in CROP_MODES.items()}
    if (crop_mode := pretrained_cfg.get("crop_mode", "center")) not in fits:
        raise VitrailError(f"crop_mode in config.json must be center, border or squash, got {crop_mode!r}")
    preprocess = Preprocess(
        config.image,
        crop_pct=float(pretrained_cfg.get("crop_pct", 0.875)),
        fit=fits[crop_mode],
        interpolation=pretrained_cfg["interpolation"],
        mean=tuple(float(value) for value in pretrained_cfg["mean"]),
        std=tuple(float(value) for value in pretrained_cfg["std"]),
    )
    return inspect.trim_to_patches(preprocess, config, _recorded_size(pretrained_cfg, {}), assumed)


def _class_names(sidecar: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    names = sidecar.get("label_names")
    return tuple(map(str, names)) if isinstance(names, list) and len(names) == classes else None
