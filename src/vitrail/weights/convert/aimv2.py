"""Convert AIMv2 (Fini et al. 2024) in the names of its own code, by renaming to timm's names."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.weights.convert import inspect
from vitrail.weights.convert.inspect import ConvertedCheckpoint, Overrides
from vitrail.weights.convert.rename import convert_renamed, refuse_unknown, rename, require
from vitrail.weights.convert.timm_architectures import Architecture
from vitrail.weights.convert.timm_names import to_timm_names

RENAMES = [
    (r"^preprocessor\.patchifier\.", "patch_embed."),
    (r"^preprocessor\.pos_embed$", "pos_embed"),
    (r"^trunk\.blocks\.", "blocks."),
    (r"^trunk\.post_trunk_norm\.", "norm."),
    (r"\.norm_([12])\.", r".norm\1."),
    (r"\.mlp\.fc1\.", ".mlp.fc1_g."),
    (r"\.mlp\.fc3\.", ".mlp.fc1_x."),
]
HEAD_WIDTH = 128  # in every published size


def matches(names: Mapping[str, Tensor]) -> bool:
    return "preprocessor.patchifier.proj.weight" in names


def convert_checkpoint(file: Mapping[str, Tensor], sidecar: Mapping[str, Any], overrides: Overrides) -> ConvertedCheckpoint:
    if sidecar.get("model_type", "aimv2") != "aimv2":
        raise VitrailError(f"config.json must be of an aimv2 with these tensors, got {str(sidecar['model_type'])[:40]!r}")
    if not any(name.endswith(".mlp.fc3.weight") for name in file):
        raise VitrailError("the file has the names of AIM without the gated MLP of AIMv2, and only AIMv2 can be read")
    if "preprocessor.pos_embed" not in file:
        raise VitrailError(
            "the file has no preprocessor.pos_embed, as AIMv2's model for images of any size, whose positions Vitrail does not "
            "have; try a model of one size, such as aimv2-large-patch14-224"
        )
    require(file, "preprocessor.patchifier.proj.bias", "preprocessor.patchifier.norm.weight", "trunk.post_trunk_norm.weight")
    _check_gates(file)
    assumed: list[str] = []
    tensors = to_timm_names(rename(file, RENAMES))
    width = inspect.require_shape(tensors, "patch_embed.proj.weight", 4)[0]
    facts = Architecture(heads=_heads(width, sidecar, overrides, assumed), norm_eps=1e-5, pool=overrides.pool or "gap")
    config, state, unknown = convert_renamed(tensors, facts, overrides, assumed)
    if any(name.startswith("head.") for name in file):
        raise VitrailError(
            "the file has the attention pooling of AIMv2's LiT model, which Vitrail's Vision Transformers do not have"
        )
    refuse_unknown(unknown)
    preprocess = inspect.assume_preprocess("CLIP", config, assumed)
    return ConvertedCheckpoint("aimv2", config, state, [], assumed, preprocess)


def _check_gates(file: Mapping[str, Tensor]) -> None:
    """Refuse a gate and a value that cannot be joined."""
    for name, gate in file.items():
        value = file.get(name.replace(".mlp.fc1.", ".mlp.fc3."))
        if ".mlp.fc1." not in name or value is None:
            continue
        if gate.shape != value.shape or gate.ndim != 2 or not (gate.is_floating_point() and value.is_floating_point()):
            shapes = f"{list(gate.shape)} and {list(value.shape)}"
            raise VitrailError(f"{name} and its fc3 must be floating-point matrices of one shape, got {shapes}")


def _heads(width: int, sidecar: Mapping[str, Any], overrides: Overrides, assumed: list[str]) -> int:
    heads = overrides.heads or sidecar.get("num_attention_heads")
    if type(heads) is int and heads > 0:
        return heads
    if width % HEAD_WIDTH:
        raise VitrailError(f"AIMv2's heads are {HEAD_WIDTH} wide, got a model {width} wide; give heads=")
    assumed.append(f"{width // HEAD_WIDTH} heads ({HEAD_WIDTH} channels per head, as in AIMv2; heads= overrides it)")
    return width // HEAD_WIDTH
