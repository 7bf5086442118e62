"""The small recipe shared by the experiments: a ViT with 0.2 million parameters, a hybrid and a ResNet of equal compute, for
images of some 28 to 96 pixels. The hyperparameters for this size are from ``docs/log.md``."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from vitrail.augment.policy import policy
from vitrail.data.decode import as_picture
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import NAMES, pictures
from vitrail.data.sources.source import Source
from vitrail.errors import VitrailError
from vitrail.lab.experiment import Asked
from vitrail.models.cost import cost
from vitrail.models.settings import ModelConfig, Pair, ResNetConfig, Stem, ViTConfig
from vitrail.train.recipe import Optim, Recipe, Schedule

STEPS, BATCH = 1000, 64
QUICK = {"count": 60, "held": 20}  # images of a quick test
QUICK_BATCH = 16
TRIED = 10  # images at the start of a dataset that are tried until one can be read
LARGEST, SHRUNKEN = 96, (64, 64)  # pixels: images up to this side keep their size, larger ones are resized
MUON = Optim(kind="muon", lr=2e-3, matrix_lr=0.01, weight_decay=0.1, clip=1.0)
ADAMW = Optim(lr=2e-3, weight_decay=0.1, clip=1.0)
SGD = Optim(kind="sgd", lr=0.1, weight_decay=1e-4)
BEST = {"ViT": MUON, "hybrid": MUON, "ResNet": SGD}  # optimiser of each family
M = TypeVar("M", bound=ModelConfig)


@dataclass(frozen=True)
class Seen:
    """Image size, channels, classes and number of training images of a dataset."""

    size: Pair
    channels: int
    classes: int
    count: int


@cache
def seen(data: str) -> Seen:
    """Return the shape of a dataset, from its first readable image."""
    found = pictures(data)
    if not len(found.train):
        raise VitrailError(f"{data} has no training images; try fashion")
    high, wide, channels = _shape(found.train, data)
    size = (high, wide) if max(high, wide) <= LARGEST else SHRUNKEN
    return Seen(size, channels, len(found.names), len(found.train))


def _shape(source: Source, data: str) -> tuple[int, int, int]:
    for index in range(min(len(source), TRIED)):
        with suppress(VitrailError, OSError):
            content = source.content(index)
            if isinstance(content, np.ndarray):
                return content.shape[0], content.shape[1], content.shape[2]
            picture = as_picture(content)
            return picture.height, picture.width, 3
    raise VitrailError(f"the first images of {data} cannot be read; try fashion")


def data_of(asked: Asked, **settings: Any) -> str:
    """Return the name of the dataset with these options; a small subset for a quick test."""
    small = QUICK if asked.quick and has_amounts(asked.data) else {}
    return with_settings(asked.data, **{**small, **settings})


def with_settings(data: str, **settings: Any) -> str:
    """Return a dataset name with options: ``fashion`` with count=500 is ``fashion:count=500``."""
    if not settings:
        return data
    if not has_amounts(data):
        raise VitrailError(
            f"the experiment needs subsets of a dataset, which {data} does not offer; try fashion or panes:size=32"
        )
    head, _, options = data.partition(":")
    known = dict(option.split("=", 1) for option in options.split(",") if "=" in option)
    made = {**known, **{name: str(value) for name, value in settings.items() if value is not None}}
    return f"{head}:{','.join(f'{name}={value}' for name, value in made.items())}"


def vit(asked: Asked, image: Pair | None = None, **changes: Any) -> ViTConfig:
    """Build the small ViT for the native image size, with patches of 4 x 4, or 8 x 8 from 49 pixels on."""
    known = seen(data_of(asked))
    size, side = image or known.size, patch_of(known.size)
    plain: dict[str, Any] = {
        "width": 64, "depth": 4, "mlp": 256, "heads": 4, "patch": (side, side), "channels": known.channels,
        "classes": known.classes, "position": "sincos2d", "pool": "gap", "gelu": "exact",
    }  # fmt: skip
    made = {**plain, **changes}
    high, wide = made["patch"]
    return ViTConfig(**made, image=(max(round(size[0] / high), 1) * high, max(round(size[1] / wide), 1) * wide))


def patch_of(size: Pair) -> int:
    return 4 if max(size) <= 48 else 8


def coarse(asked: Asked) -> Pair:
    """Return a patch size of sixteen patches per image, a third of the compute: more steps are worth more than patches."""
    high, wide = seen(data_of(asked)).size
    return max(high // 4, 1), max(wide // 4, 1)


def hybrid(like: ViTConfig) -> ViTConfig:
    """Build the hybrid of closest compute: a convolutional stem of the ViT's stride, and fewer layers."""
    side = like.patch[0] // 4
    return alike(
        like,
        [
            ViTConfig(
                **{name: getattr(like, name) for name in ("width", "mlp", "heads", "image", "channels", "classes")},
                depth=depth, patch=(side, side), stem=Stem(stages=stages, width=width),
                position=like.position, pool=like.pool, gelu=like.gelu,
            )
            for depth in range(max(like.depth // 2, 1), like.depth)
            for stages in ((1,), (2,), (3,))
            for width in (32, 64)
        ],
    )  # fmt: skip


def resnet(like: ViTConfig) -> ResNetConfig:
    """Build the two-stage BiT ResNet of closest compute."""
    return alike(
        like,
        [
            ResNetConfig(stages=(first, second), width=width, image=like.image, channels=like.channels, classes=like.classes)
            for first in range(1, 4)
            for second in range(1, 10)
            for width in (32, 64)
        ],
    )


def alike(like: ModelConfig, options: Iterable[M]) -> M:
    """Return the model whose multiply-adds are closest to those of ``reference``."""
    wanted = cost(like).macs
    return min(options, key=lambda option: abs(cost(option).macs / wanted - 1))


def families(like: ViTConfig) -> dict[str, ModelConfig]:
    """Return the paper's three families, of equal compute."""
    return {"ViT": like, "hybrid": hybrid(like), "ResNet": resnet(like)}


def recipe(
    asked: Asked, model: ModelConfig, seed: int = 0, optim: Optim = MUON, steps: int = STEPS, looks: int = 2, **changes: Any
) -> Recipe:
    """Build the recipe: one-pixel shifts and flips, a tenth of the steps as warm-up, EMA weights."""
    plain: dict[str, Any] = {
        "data": data_of(asked), "batch": QUICK_BATCH if asked.quick else BATCH, "augment": policy("pad", pad=1),
        "schedule": Schedule(warmup=steps // 10), "ema": 1 - 4 / steps,
    }  # fmt: skip
    channels, often = model.channels, steps if asked.quick else -(-steps // looks)
    return Recipe(
        name="lab", model=model, preprocess=Preprocess(model.image, mean=(0.5,) * channels, std=(0.5,) * channels),
        steps=steps, optim=optim, seed=seed, evaluate=often, checkpoint=often, keep=1, **{**plain, **changes},
    )  # fmt: skip


def has_amounts(data: str) -> bool:
    """Whether the dataset name takes options that select a subset."""
    return data.partition(":")[0] in NAMES
