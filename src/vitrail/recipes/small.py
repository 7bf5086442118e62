"""``small``: from scratch on a folder of a few thousand images. ``vitrail train DIR``."""

from typing import Any

from vitrail.augment.policy import get_policy
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.config import Pair, ViTConfig
from vitrail.models.variants import parse_name, variant
from vitrail.recipes.context import RecipeContext, capped_warmup, interval
from vitrail.recipes.recipe import Optim, Recipe, Schedule


def small(context: RecipeContext) -> Recipe:
    """A narrow ViT with small patches, average pooling and fixed positions (Beyer et al. 2022); Muon, crops from 0.3 of the
    image and a little Mixup, EMA weights, 60 epochs.

    3,068 photographs of ten kinds of clothes at 96 pixels: 65.9 % on test, 71.0 % on validation (``vitrail train DIR``, 85
    minutes on one core). A linear probe on pretrained weights has 90.6 % there, so if there are such weights,
    ``vitrail finetune`` is the better choice. ``docs/log.md`` has what was tried.
    """
    model, preprocess = small_model(context)
    batch_size = context.capped_batch(128)
    steps = min(max(context.num_steps(60, batch_size), 1000), 50_000)
    return Recipe(
        name="small",
        data=context.data,
        model=model,
        preprocess=preprocess,
        steps=steps,
        batch_size=batch_size,
        augment=get_policy("none", crop_scale=(0.3, 1.0), mixup=0.2),
        optim=Optim(name="muon", lr=2e-3, muon_lr=0.01, weight_decay=0.05, grad_clip=1.0),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(500, steps)),
        ema_decay=0.998,
        eval_every=interval(steps),
        checkpoint_every=interval(steps),
    )


def small_model(context: RecipeContext, **changes: Any) -> tuple[ViTConfig, Preprocess]:
    """Return model and preprocessing: the variant that is named, or a narrow ViT for images at 96 x 96.

    Small images keep their native size. A named variant has its own patches, and 224 x 224 images unless they are small.
    """
    native_size = context.native_size if context.native_size and max(context.native_size) <= 64 else None
    changes = {
        "position": "sincos2d",
        "pool": "gap",
        "gelu": "exact",
        "channels": context.channels,
        "classes": context.classes,
    } | changes
    if context.model is not None:
        kind, named = parse_name(context.model)
        if kind is not ViTConfig:
            raise VitrailError(f"the small recipe trains a ViT, got model={context.model}; try recipe=resnet")
        stride = (32, 32) if "stem" in named else named["patch"]
        image = context.image or _nearest_multiple(native_size or (224, 224), stride)
        built = variant(context.model, image=image, **changes)
        assert isinstance(built, ViTConfig)
        return built, _preprocess(image, context.channels)
    size = context.image or native_size or (96, 96)
    side = 4 if max(size) <= 48 else 8
    image = context.image or _nearest_multiple(size, (side, side))
    shape: dict[str, Any] = {"width": 192, "depth": 6, "mlp": 384, "heads": 3, "patch": (side, side), "image": image}
    return ViTConfig(**(shape | changes)), _preprocess(image, context.channels)


def _nearest_multiple(size: Pair, patch: Pair) -> Pair:
    return max(round(size[0] / patch[0]), 1) * patch[0], max(round(size[1] / patch[1]), 1) * patch[1]


def _preprocess(image: Pair, channels: int) -> Preprocess:
    return Preprocess(image, crop_pct=0.9, mean=(0.5,) * channels, std=(0.5,) * channels)
