"""``demo``: the embedded Fashion-MNIST in about two minutes on two cores of a laptop. ``vitrail train``."""

from vitrail.augment.policy import policy
from vitrail.data.preprocess import Preprocess
from vitrail.models.settings import ViTConfig
from vitrail.recipes.given import Given
from vitrail.train.recipe import Optim, Recipe, Schedule


def demo(given: Given) -> Recipe:
    size, channels = given.size or (28, 28), given.channels
    model = ViTConfig(
        width=96, depth=4, mlp=192, heads=3, patch=(4, 4), image=size, channels=channels, classes=given.classes,
        position="sincos2d", pool="gap", gelu="exact",
    )  # fmt: skip
    batch = given.batch(128)
    return Recipe(
        name="demo",
        data=given.data,
        model=model,
        preprocess=Preprocess(size, mean=(0.5,) * channels, std=(0.5,) * channels),
        steps=2000,
        batch=batch,
        augment=policy("pad", pad=2),
        optim=Optim(kind="muon", lr=2e-3, matrix_lr=0.02, weight_decay=0.05, clip=1.0),
        schedule=Schedule("cosine", warmup=100),
        ema=0.998,
        evaluate=250,
        checkpoint=250,
    )
