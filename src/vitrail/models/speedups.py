"""Inference speed-ups of a trained model: fewer tokens, a compiled forward pass."""

from dataclasses import fields, replace
from typing import Any

from vitrail.errors import VitrailError, did_you_mean
from vitrail.models.build import Model, get_encoder
from vitrail.models.config import format_size
from vitrail.models.cost.token_merging import merges_for_speedup
from vitrail.models.speedup_config import Speedups
from vitrail.models.token_reduced_vit import TokenReducedViT, shallow_copy
from vitrail.models.vit import ViT


def speed_up(model: Model, speedups: Speedups | None = None, **changes: Any) -> Model:
    """Return a faster model that shares the weights; it predicts, evaluates and explains like any other.

    ``speed_up(model, merge_tokens=8)``, or a ``Speedups``. Another image size needs another position table:
    ``vitrail.load`` with the same ``image`` builds it.
    """
    unknown = [name for name in changes if name not in {field.name for field in fields(Speedups)}]
    if unknown:
        names = [field.name for field in fields(Speedups)]
        raise VitrailError(
            f"there is no speed-up {unknown[0]!r}, there are {', '.join(names)}{did_you_mean(unknown[0], names)}"
        )
    if not hasattr(model, "config"):
        raise VitrailError(f"speed_up needs a model, got {str(model)[:80]!r}; try vitrail.load on it first")
    speedups = replace(speedups or Speedups(), **changes)
    if speedups.image is not None and speedups.image != model.config.image:
        raise VitrailError(
            f"the model takes images of {format_size(model.config.image)}, got image={format_size(speedups.image)}; "
            f"load it with vitrail.load(..., image={speedups.image})"
        )
    model = _reduce_tokens(model, speedups)
    return compiled_copy(model) if speedups.compile else model


def _reduce_tokens(model: Model, speedups: Speedups) -> Model:
    """Return a token-reduced model, or the model itself if nothing is to be merged or dropped."""
    if not speedups.drop_patches and speedups.merge_tokens in (0, "1x"):
        return model
    if get_encoder(model) is not model:
        raise VitrailError("the model has a decoder, which needs all patches; leave merge_tokens and drop_patches out")
    if not isinstance(model, ViT):
        raise VitrailError("a ResNet has no tokens to merge and no patches to drop; load a Vision Transformer or a hybrid")
    if model.config.position == "relative" or model.config.relative_bias:
        raise VitrailError(
            "relative positions count the offsets between all patches, so none can be merged or dropped; "
            "leave merge_tokens and drop_patches out, or train with position='rotary'"
        )
    if model.config.needs_whole_grid:
        raise VitrailError(
            "windows and relative positions along the axes need all patches, so none can be merged or dropped; leave "
            "merge_tokens and drop_patches out"
        )
    if model.config.rotation and model.config.rotation.mixed:
        raise VitrailError(
            "with learned rotary frequencies each layer rotates by its own angles, which merged tokens would need to mix; "
            "leave merge_tokens and drop_patches out, or train with position='rotary'"
        )
    num_merged = (
        speedups.merge_tokens
        if isinstance(speedups.merge_tokens, int)
        else merges_for_speedup(model.config, speedups.target_speedup or 1.0, speedups.drop_patches, speedups.merge_every)
    )
    return TokenReducedViT(model, num_merged, speedups.drop_patches, speedups.merge_every)


def compiled_copy(model: Model) -> Model:
    """Return a compiled copy. Its first batch of each size takes a minute; ``explain`` runs an uncompiled copy."""
    copied = shallow_copy(model)
    copied.compile()
    return copied
