"""What a recipe is told before it is written: the data at hand, and what its user wishes. Needs no torch."""

from dataclasses import dataclass

from vitrail.models.settings import Pair


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
    start: str | None = None  # weights to start from

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
    """Steps between two evaluations, so many a run."""
    return max(steps // times, 1)
