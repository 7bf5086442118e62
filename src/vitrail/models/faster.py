"""A model that answers sooner, by switches that say what is given up for it. The settings need no torch.

``compile`` gives up a minute before the first answer. ``merge`` joins tokens that are alike (``models.merged``), ``drop``
leaves out the patches in which least happens, ``image`` shows the model smaller pictures: each gives up some accuracy, and
``vitrail bench merge`` measures how much for how much speed.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from vitrail.config import check
from vitrail.errors import VitrailError, suggestion
from vitrail.models.settings import Pair, times

if TYPE_CHECKING:
    from vitrail.models.build import Model

FASTEST = 100.0  # times, beyond which nothing is left of a picture


@dataclass(frozen=True)
class Faster:
    """Nothing is switched on unless it is named."""

    compile: bool = False
    merge: int | str = 0  # tokens that are merged in a layer, or "1.5x": as many as make it that much faster in MACs
    every: int = 1  # they are merged in the first layer and in every so many from there
    drop: float = 0.0  # share of the patches that is left out
    image: Pair | None = None  # the size that pictures are shown at; none: the model's own

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.merge, int) and self.merge < 0:
            raise VitrailError(f"merge must be at least 0 tokens a layer, got {self.merge}; try merge=8 or merge='1.5x'")
        if self.every < 1:
            raise VitrailError(f"every must be at least 1 layer, got {self.every}; try every=3")
        if isinstance(self.merge, str):
            self.speed  # noqa: B018 - or a sentence
        if not 0 <= self.drop < 1:
            raise VitrailError(f"drop must be a share from 0 to below 1, got {self.drop:g}; try drop=0.25")

    @property
    def speed(self) -> float | None:
        """How many times as fast merging is to make it; none: tokens are counted."""
        if isinstance(self.merge, int):
            return None
        word = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)x", self.merge)
        if word is None or not 1 <= float(word[1]) <= FASTEST:
            raise VitrailError(f"merge must be tokens a layer or a speed as 1.5x, got {self.merge[:20]!r}; try 8 or 1.5x")
        return float(word[1])


def faster(model: "Model", how: Faster | None = None, **switches: Any) -> "Model":
    """The same weights behind the switches; predicts, is evaluated and explained like any other.

    ``faster(model, merge=8)``, or ready settings. The weights are shared, not copied. To show a model another size of picture
    takes another position table: ``vitrail.load`` makes it, with the same ``image``.
    """
    wrong = [name for name in switches if name not in {field.name for field in fields(Faster)}]
    if wrong:
        names = [field.name for field in fields(Faster)]
        raise VitrailError(f"there is no switch {wrong[0]!r}, there are {', '.join(names)}{suggestion(wrong[0], names)}")
    if not hasattr(model, "config"):
        raise VitrailError(f"what is to be faster must be a model, got {str(model)[:80]!r}; try vitrail.load on it first")
    how = replace(how or Faster(), **switches)
    if how.image is not None and how.image != model.config.image:
        raise VitrailError(
            f"the model is at {times(model.config.image)}, got image={times(how.image)}; "
            f"load it with vitrail.load(..., image={how.image})"
        )
    from vitrail.models.merged import compiled, merged

    model = merged(model, how)
    return compiled(model) if how.compile else model
