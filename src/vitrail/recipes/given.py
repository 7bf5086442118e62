"""The context that a recipe is built for: the dataset, and the options of its user. Torch-free."""

from dataclasses import dataclass, replace
from typing import Any

from vitrail.data.preprocess import Preprocess, official
from vitrail.models.settings import ModelConfig, Pair, ViTConfig
from vitrail.models.variants import variant


@dataclass(frozen=True)
class Start:
    """Pretrained weights to initialise from, at the requested image size: source, hash and metadata."""

    source: str
    hash: str
    model: ModelConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Given:
    """Dataset and options that a recipe is built for. ``native_size``: that of small images of one size, else None."""

    data: str = "fashion"
    pictures: int = 9000
    classes: int = 10
    size: Pair | None = (28, 28)
    channels: int = 1
    model: str | None = None  # such as B/16, if the recipe leaves it open
    image: Pair | None = None
    start: Start | None = None  # weights to initialise from
    names: tuple[str, ...] = ()  # of the classes

    def begin(self, image: Pair) -> dict[str, Any]:
        """Return the model fields of a fine-tuning recipe: the checkpoint's own model and preprocessing, with a new head unless
        the classes are exactly the same. ``image``: the size if there is no checkpoint."""
        start = self.start
        if start is None:
            size = self.image or image
            model = variant(self.model or "B/16", image=size, classes=self.classes)
            return {"model": model, "preprocess": official(size)}
        kept = start.labels is not None and start.labels == self.names
        changes: dict[str, Any] = {} if kept else {"classes": self.classes}
        if not kept and isinstance(start.model, ViTConfig):
            changes |= {"head": "linear", "head_width": None}  # the paper drops the whole pre-training head
        return {
            "start": start.source,
            "start_hash": start.hash,
            "keep_head": kept,
            "model": replace(start.model, **changes),
            "preprocess": start.preprocess,
        }

    def steps(self, epochs: float, batch: int) -> int:
        return max(round(epochs * self.pictures / batch), 1)

    def batch(self, wished: int) -> int:
        """Return the recipe's batch size, for a small dataset at most a tenth of it, a power of two."""
        most = 2 ** max((self.pictures // 10).bit_length() - 1, 0)
        return min(wished, most)


def warm_up(wished: int, steps: int) -> int:
    """Return the recipe's warm-up steps, at most a tenth of the run."""
    return min(wished, steps // 10)


def periods(steps: int, times: int = 20) -> int:
    """Return the steps between two evaluations, for at most so many per run, the last at or near its end."""
    return -(-steps // times)
