"""What a recipe is told before it is written: the data at hand, and what its user wishes. Needs no torch."""

from dataclasses import dataclass, replace
from typing import Any

from vitrail.data.preprocess import Preprocess, official
from vitrail.models.settings import ModelConfig, Pair, ViTConfig
from vitrail.models.variants import variant


@dataclass(frozen=True)
class Start:
    """Weights to start from, at the size that is wished for: their hash, and what they say of themselves."""

    source: str
    hash: str
    model: ModelConfig
    preprocess: Preprocess
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Given:
    """``size``: height and width of the pictures where all are alike and small, else none."""

    data: str = "fashion"
    pictures: int = 9000
    classes: int = 10
    size: Pair | None = (28, 28)
    channels: int = 1
    model: str | None = None  # a name such as B/16, where the recipe leaves it open
    image: Pair | None = None
    start: Start | None = None  # weights to start from
    names: tuple[str, ...] = ()  # of the classes

    def begin(self, image: Pair) -> dict[str, Any]:
        """What a recipe for fine-tuning begins with: the checkpoint's own model and preprocessing, with a new head, unless the
        classes are the very same: then the classifier is worth keeping. ``image``: the size where there is no checkpoint."""
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
        """The recipe's, or what a small data set can fill: a tenth of it, a power of two."""
        most = 2 ** max((self.pictures // 10).bit_length() - 1, 0)
        return min(wished, most)


def warm_up(wished: int, steps: int) -> int:
    """The recipe's number of steps, but never more than a tenth of the run."""
    return min(wished, steps // 10)


def periods(steps: int, times: int = 20) -> int:
    """Steps between two evaluations, at most so many a run, the last at its end or soon before."""
    return -(-steps // times)
