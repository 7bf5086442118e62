"""The small recipe that the experiments share: on pictures of some 28 to 96 pixels, a ViT of 0.2 million weights, and a hybrid
and a ResNet of as many multiply-adds. What is good at this size is from ``docs/log.md``."""

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
QUICK = {"count": 60, "held": 20}  # pictures, where a few steps are to show that it works
QUICK_BATCH = 16
TRIED = 10  # pictures that may be damaged at the beginning of a set
LARGEST, SHRUNKEN = 96, (64, 64)  # pixels: up to so many a side they are seen as they are, larger ones in these
MUON = Optim(kind="muon", lr=2e-3, matrix_lr=0.01, weight_decay=0.1, clip=1.0)
ADAMW = Optim(lr=2e-3, weight_decay=0.1, clip=1.0)
SGD = Optim(kind="sgd", lr=0.1, weight_decay=1e-4)
BEST = {"ViT": MUON, "hybrid": MUON, "ResNet": SGD}  # for each family
M = TypeVar("M", bound=ModelConfig)


@dataclass(frozen=True)
class Seen:
    size: Pair
    channels: int
    classes: int
    count: int  # to learn from


@cache
def seen(data: str) -> Seen:
    """What the pictures of a set are, by its first that can be read."""
    found = pictures(data)
    if not len(found.train):
        raise VitrailError(f"{data} has nothing to learn from; try fashion")
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
    raise VitrailError(f"the first pictures of {data} cannot be read; try fashion")


def data_of(asked: Asked, **settings: Any) -> str:
    """The data with these settings of its own; for a quick look a little of it."""
    small = QUICK if asked.quick and has_amounts(asked.data) else {}
    return with_settings(asked.data, **{**small, **settings})


def with_settings(data: str, **settings: Any) -> str:
    """``fashion`` with count=500 is ``fashion:count=500``."""
    if not settings:
        return data
    if not has_amounts(data):
        raise VitrailError(f"the experiment takes amounts of a set, which {data} has not; try fashion or panes:size=32")
    head, _, options = data.partition(":")
    known = dict(option.split("=", 1) for option in options.split(",") if "=" in option)
    made = {**known, **{name: str(value) for name, value in settings.items() if value is not None}}
    return f"{head}:{','.join(f'{name}={value}' for name, value in made.items())}"


def vit(asked: Asked, image: Pair | None = None, **changes: Any) -> ViTConfig:
    """Pictures as large as they are, in patches of 4 x 4, or of 8 x 8 from 49 pixels on."""
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
    """Sixteen patches a picture, a third of the compute: where patches are not the question, more steps are worth more."""
    high, wide = seen(data_of(asked)).size
    return max(high // 4, 1), max(wide // 4, 1)


def hybrid(like: ViTConfig) -> ViTConfig:
    """A convolutional stem of the ViT's stride, and fewer layers: the one of nearest compute."""
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
    """A BiT ResNet of two stages: the one of nearest compute."""
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
    """The one whose multiply-adds are nearest."""
    wanted = cost(like).macs
    return min(options, key=lambda option: abs(cost(option).macs / wanted - 1))


def families(like: ViTConfig) -> dict[str, ModelConfig]:
    """The paper's three, of like compute."""
    return {"ViT": like, "hybrid": hybrid(like), "ResNet": resnet(like)}


def recipe(
    asked: Asked, model: ModelConfig, seed: int = 0, optim: Optim = MUON, steps: int = STEPS, looks: int = 2, **changes: Any
) -> Recipe:
    """Shifts by a pixel and mirror images, a tenth of the steps to warm up, averaged weights, so many looks at validation."""
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
    """Whether there can be less of it by its name."""
    return data.partition(":")[0] in NAMES
