"""The small recipe shared by the experiments: a ViT with 0.2 million parameters, a hybrid and a ResNet of equal compute, for
images of some 28 to 96 pixels. The hyperparameters for this size are from ``docs/log.md``."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from vitrail.augment.policy import get_policy
from vitrail.data.decode import to_pil
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.open import DATASET_NAMES, open_dataset
from vitrail.errors import VitrailError
from vitrail.lab.experiment import ExperimentOptions
from vitrail.models.config import ModelConfig, Pair, ResNetConfig, StemConfig, ViTConfig
from vitrail.models.cost import cost
from vitrail.recipes.recipe import Optim, Recipe, Schedule

STEPS, BATCH = 1000, 64
QUICK_SUBSET = {"train_size": 60, "heldout_size": 20}  # images of a quick test
QUICK_BATCH = 16
MAX_TRIED_IMAGES = 10  # images at the start of a dataset that are tried until one can be read
MAX_NATIVE_SIDE, DOWNSAMPLED_SIZE = 96, (64, 64)  # pixels: images up to this side keep their size, larger ones are resized
MUON = Optim(name="muon", lr=2e-3, muon_lr=0.01, weight_decay=0.1, grad_clip=1.0)
ADAMW = Optim(lr=2e-3, weight_decay=0.1, grad_clip=1.0)
SGD = Optim(name="sgd", lr=0.1, weight_decay=1e-4)
FAMILY_OPTIM = {"ViT": MUON, "hybrid": MUON, "ResNet": SGD}  # optimiser of each family
M = TypeVar("M", bound=ModelConfig)


@dataclass(frozen=True)
class DatasetShape:
    """Image size, channels, classes and number of training images of a dataset."""

    size: Pair
    channels: int
    classes: int
    num_train: int


@cache
def dataset_shape(data: str) -> DatasetShape:
    """Return the shape of a dataset, from its first readable image."""
    splits = open_dataset(data)
    if not len(splits.train):
        raise VitrailError(f"{data} has no training images; try fashion")
    high, wide, channels = _first_image_shape(splits.train, data)
    size = (high, wide) if max(high, wide) <= MAX_NATIVE_SIDE else DOWNSAMPLED_SIZE
    return DatasetShape(size, channels, len(splits.class_names), len(splits.train))


def _first_image_shape(dataset: Dataset, data: str) -> tuple[int, int, int]:
    for index in range(min(len(dataset), MAX_TRIED_IMAGES)):
        with suppress(VitrailError, OSError):
            content = dataset.read(index)
            if isinstance(content, np.ndarray):
                return content.shape[0], content.shape[1], content.shape[2]
            image = to_pil(content)
            return image.height, image.width, 3
    raise VitrailError(f"the first images of {data} cannot be read; try fashion")


def dataset_name(options: ExperimentOptions, **subset_options: Any) -> str:
    """Return the name of the dataset with these options; a small subset for a quick test."""
    quick = QUICK_SUBSET if options.quick and supports_subsets(options.data) else {}
    return with_options(options.data, **{**quick, **subset_options})


def with_options(data: str, **changes: Any) -> str:
    """Return a dataset name with options: ``fashion`` with train_size=500 is ``fashion:train_size=500``."""
    if not changes:
        return data
    if not supports_subsets(data):
        raise VitrailError(
            f"the experiment needs subsets of a dataset, which {data} does not offer; try fashion or panes:size=32"
        )
    head, _, options = data.partition(":")
    current = dict(option.split("=", 1) for option in options.split(",") if "=" in option)
    merged = {**current, **{name: str(value) for name, value in changes.items() if value is not None}}
    return f"{head}:{','.join(f'{name}={value}' for name, value in merged.items())}"


def small_vit(options: ExperimentOptions, image: Pair | None = None, **changes: Any) -> ViTConfig:
    """Build the small ViT for the native image size, with patches of 4 x 4, or 8 x 8 from 49 pixels on."""
    shape = dataset_shape(dataset_name(options))
    size, side = image or shape.size, patch_side(shape.size)
    defaults: dict[str, Any] = {
        "width": 64, "depth": 4, "mlp": 256, "heads": 4, "patch": (side, side), "channels": shape.channels,
        "classes": shape.classes, "position": "sincos2d", "pool": "gap", "gelu": "exact",
    }  # fmt: skip
    fields = {**defaults, **changes}
    high, wide = fields["patch"]
    return ViTConfig(**fields, image=(max(round(size[0] / high), 1) * high, max(round(size[1] / wide), 1) * wide))


def patch_side(size: Pair) -> int:
    return 4 if max(size) <= 48 else 8


def coarse_patch(options: ExperimentOptions) -> Pair:
    """Return a patch size of sixteen patches per image, a third of the compute: more steps are worth more than patches."""
    high, wide = dataset_shape(dataset_name(options)).size
    return max(high // 4, 1), max(wide // 4, 1)


def matched_hybrid(reference: ViTConfig) -> ViTConfig:
    """Build the hybrid of closest compute: a convolutional stem of the ViT's stride, and fewer layers."""
    side = reference.patch[0] // 4
    return closest_compute(
        reference,
        [
            ViTConfig(
                **{name: getattr(reference, name) for name in ("width", "mlp", "heads", "image", "channels", "classes")},
                depth=depth, patch=(side, side), stem=StemConfig(stages=stages, width=width),
                position=reference.position, pool=reference.pool, gelu=reference.gelu,
            )
            for depth in range(max(reference.depth // 2, 1), reference.depth)
            for stages in ((1,), (2,), (3,))
            for width in (32, 64)
        ],
    )  # fmt: skip


def matched_resnet(reference: ViTConfig) -> ResNetConfig:
    """Build the two-stage BiT ResNet of closest compute."""
    return closest_compute(
        reference,
        [
            ResNetConfig(
                stages=(first, second),
                width=width,
                image=reference.image,
                channels=reference.channels,
                classes=reference.classes,
            )
            for first in range(1, 4)
            for second in range(1, 10)
            for width in (32, 64)
        ],
    )


def closest_compute(reference: ModelConfig, candidates: Iterable[M]) -> M:
    """Return the model whose multiply-adds are closest to those of ``reference``."""
    target = cost(reference).macs
    return min(candidates, key=lambda candidate: abs(cost(candidate).macs / target - 1))


def matched_families(reference: ViTConfig) -> dict[str, ModelConfig]:
    """Return the paper's three families, of equal compute."""
    return {"ViT": reference, "hybrid": matched_hybrid(reference), "ResNet": matched_resnet(reference)}


def small_recipe(
    options: ExperimentOptions,
    model: ModelConfig,
    seed: int = 0,
    optim: Optim = MUON,
    steps: int = STEPS,
    evaluations: int = 2,
    **changes: Any,
) -> Recipe:
    """Build the recipe: one-pixel shifts and flips, a tenth of the steps as warm-up, EMA weights."""
    defaults: dict[str, Any] = {
        "data": dataset_name(options),
        "batch_size": QUICK_BATCH if options.quick else BATCH,
        "augment": get_policy("pad", pad=1),
        "schedule": Schedule(warmup_steps=steps // 10),
        "ema_decay": 1 - 4 / steps,
    }
    channels, eval_every = model.channels, steps if options.quick else -(-steps // evaluations)
    return Recipe(
        name="lab",
        model=model,
        preprocess=Preprocess(model.image, mean=(0.5,) * channels, std=(0.5,) * channels),
        steps=steps,
        optim=optim,
        seed=seed,
        eval_every=eval_every,
        checkpoint_every=eval_every,
        keep_checkpoints=1,
        **{**defaults, **changes},
    )


def supports_subsets(data: str) -> bool:
    """Whether the dataset name takes options that select a subset."""
    return data.partition(":")[0] in DATASET_NAMES
