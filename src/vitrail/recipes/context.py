"""The context that a recipe is built for: the dataset, and the options of its user. Torch-free."""

from dataclasses import dataclass, replace
from typing import Any

from vitrail.data.preprocess import Preprocess, official_preprocess
from vitrail.models.config import ModelConfig, Pair, ViTConfig
from vitrail.models.variants import variant


@dataclass(frozen=True)
class InitWeights:
    """Pretrained weights to initialise from, at the requested image size: source, hash and metadata."""

    source: str
    sha256: str
    model: ModelConfig
    preprocess: Preprocess
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class RecipeContext:
    """Dataset and options that a recipe is built for. ``native_size``: that of small images of one size, else None."""

    data: str = "fashion"
    num_images: int = 9000
    classes: int = 10
    native_size: Pair | None = (28, 28)
    channels: int = 1
    model: str | None = None  # such as B/16, if the recipe leaves it open
    image: Pair | None = None
    init_weights: InitWeights | None = None  # weights to initialise from
    class_names: tuple[str, ...] = ()  # of the classes

    def init_fields(self, image: Pair) -> dict[str, Any]:
        """Return the model fields of a fine-tuning recipe: the checkpoint's own model and preprocessing, with a new head unless
        the classes are exactly the same. ``image``: the size if there is no checkpoint."""
        init_weights = self.init_weights
        if init_weights is None:
            size = self.image or image
            model = variant(self.model or "B/16", image=size, classes=self.classes)
            return {"model": model, "preprocess": official_preprocess(size)}
        keep_head = init_weights.class_names is not None and init_weights.class_names == self.class_names
        changes: dict[str, Any] = {} if keep_head else {"classes": self.classes}
        if not keep_head and isinstance(init_weights.model, ViTConfig):
            changes |= {"head": "linear", "head_hidden": None}  # the paper drops the whole pre-training head
        return {
            "init_from": init_weights.source,
            "init_sha256": init_weights.sha256,
            "keep_head": keep_head,
            "model": replace(init_weights.model, **changes),
            "preprocess": init_weights.preprocess,
        }

    def num_steps(self, epochs: float, batch_size: int) -> int:
        return max(round(epochs * self.num_images / batch_size), 1)

    def capped_batch(self, batch_size: int) -> int:
        """Return the recipe's batch size, for a small dataset at most a tenth of it, a power of two."""
        max_size = 2 ** max((self.num_images // 10).bit_length() - 1, 0)
        return min(batch_size, max_size)


def capped_warmup(warmup_steps: int, steps: int) -> int:
    """Return the recipe's warm-up steps, at most a tenth of the run."""
    return min(warmup_steps, steps // 10)


def interval(steps: int, count: int = 20) -> int:
    """Return the steps between two evaluations, for at most so many per run, the last at or near its end."""
    return -(-steps // count)
