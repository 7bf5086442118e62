"""``small``: from nothing on a folder of a few thousand pictures. ``vitrail train DIR``."""

from vitrail.augment.policy import policy
from vitrail.data.preprocess import Preprocess
from vitrail.models.settings import ViTConfig
from vitrail.recipes.given import Given, periods, warm_up
from vitrail.train.recipe import Optim, Recipe, Schedule


def small(given: Given) -> Recipe:
    """A narrow ViT with small patches, average pooling and fixed positions; Muon, strong crops and mixing, averaged weights."""
    wished = given.image or (given.size if given.size and max(given.size) <= 64 else (96, 96))
    side = 4 if max(wished) <= 48 else 8
    patch = side, side
    image = given.image or (max(round(wished[0] / side), 1) * side, max(round(wished[1] / side), 1) * side)
    batch = given.batch(128)
    steps = min(max(given.steps(60, batch), 1000), 50_000)
    model = ViTConfig(
        width=192, depth=6, mlp=384, heads=3, patch=patch, image=image, channels=given.channels, classes=given.classes,
        position="sincos2d", pool="gap", gelu="exact",
    )  # fmt: skip
    return Recipe(
        name="small",
        data=given.data,
        model=model,
        preprocess=Preprocess(image, crop=0.9, mean=(0.5,) * given.channels, std=(0.5,) * given.channels),
        steps=steps,
        batch=batch,
        augment=policy("light2", area=(0.2, 1.0)),
        optim=Optim(kind="muon", lr=2e-3, matrix_lr=0.02, weight_decay=0.05, clip=1.0),
        schedule=Schedule("cosine", warmup=warm_up(500, steps)),
        ema=0.998,
        evaluate=periods(steps),
        checkpoint=periods(steps),
    )
