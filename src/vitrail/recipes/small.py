"""``small``: from scratch on a folder of a few thousand images. ``vitrail train DIR``."""

from typing import Any

from vitrail.augment.policy import policy
from vitrail.data.preprocess import Preprocess
from vitrail.models.settings import ViTConfig
from vitrail.recipes.given import Given, periods, warm_up
from vitrail.train.recipe import Optim, Recipe, Schedule


def small(given: Given) -> Recipe:
    """A narrow ViT with small patches, average pooling and fixed positions (Beyer et al. 2022); Muon, crops from 0.3 of the
    image and a little Mixup, EMA weights, 60 epochs.

    3,068 photographs of ten kinds of clothes at 96 pixels: 65.9 % on test, 71.0 % on validation (``vitrail train DIR``, 85
    minutes on one core). A linear probe on pretrained weights has 90.6 % there, so if there are such weights,
    ``vitrail finetune`` is the better choice. ``docs/log.md`` has what was tried.
    """
    model, preprocess = small_model(given)
    batch = given.batch(128)
    steps = min(max(given.steps(60, batch), 1000), 50_000)
    return Recipe(
        name="small",
        data=given.data,
        model=model,
        preprocess=preprocess,
        steps=steps,
        batch=batch,
        augment=policy("none", area=(0.3, 1.0), mixup=0.2),
        optim=Optim(kind="muon", lr=2e-3, matrix_lr=0.01, weight_decay=0.05, clip=1.0),
        schedule=Schedule("cosine", warmup=warm_up(500, steps)),
        ema=0.998,
        evaluate=periods(steps),
        checkpoint=periods(steps),
    )


def small_model(given: Given, **changes: Any) -> tuple[ViTConfig, Preprocess]:
    """Return model and preprocessing: small images at their native size, in patches of 4 x 4 or 8 x 8; others at 96 x 96."""
    wished = given.image or (given.size if given.size and max(given.size) <= 64 else (96, 96))
    side = 4 if max(wished) <= 48 else 8
    image = given.image or (max(round(wished[0] / side), 1) * side, max(round(wished[1] / side), 1) * side)
    plain: dict[str, Any] = {"position": "sincos2d", "pool": "gap", "gelu": "exact"}
    model = ViTConfig(
        width=192, depth=6, mlp=384, heads=3, patch=(side, side), image=image, channels=given.channels, classes=given.classes,
        **(plain | changes),
    )  # fmt: skip
    return model, Preprocess(image, crop=0.9, mean=(0.5,) * given.channels, std=(0.5,) * given.channels)
