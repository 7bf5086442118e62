"""Inference speed-ups for a trained model. The settings are torch-free.

``compile`` costs a minute before the first prediction. ``merge_tokens`` merges similar tokens (``models.token_reduced_vit``),
``drop_patches`` drops the patches of least variance, ``image`` runs the model on smaller images: each costs some accuracy,
which ``vitrail bench token-merging`` measures against the speed.
"""

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from vitrail.config import check
from vitrail.errors import VitrailError, suggestion
from vitrail.models.settings import Pair, times

if TYPE_CHECKING:
    from vitrail.models.build import Model

FASTEST = 100.0  # beyond this hardly a token is left


@dataclass(frozen=True)
class Faster:
    """Inference speed-ups; all off by default."""

    compile: bool = False
    merge: int | str = 0  # tokens merged per layer, or "1.5x": as many as give this speed-up in MACs
    every: int = 1  # merge in the first layer and every n-th from there
    drop: float = 0.0  # fraction of the patches to drop
    image: Pair | None = None  # input size; None: the model's own

    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.merge, int) and self.merge < 0:
            raise VitrailError(f"merge must be at least 0 tokens per layer, got {self.merge}; try merge=8 or merge='1.5x'")
        if self.every < 1:
            raise VitrailError(f"every must be at least 1 layer, got {self.every}; try every=3")
        if isinstance(self.merge, str):
            self.speed  # noqa: B018 - raises if invalid
        if not 0 <= self.drop < 1:
            raise VitrailError(f"drop must be a fraction from 0 to below 1, got {self.drop:g}; try drop=0.25")

    @property
    def speed(self) -> float | None:
        """The speed-up asked of merging; None if a number of tokens is given."""
        if isinstance(self.merge, int):
            return None
        word = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)x", self.merge)
        if word is None or not 1 <= float(word[1]) <= FASTEST:
            raise VitrailError(
                f"merge must be tokens per layer or a speed-up such as 1.5x, got {self.merge[:20]!r}; try 8 or 1.5x"
            )
        return float(word[1])


def faster(model: "Model", how: Faster | None = None, **switches: Any) -> "Model":
    """Return a faster model that shares the weights; it predicts, evaluates and explains like any other.

    ``speed_up(model, merge_tokens=8)``, or a ``Speedups``. Another image size needs another position table:
    ``vitrail.load`` with the same ``image`` builds it.
    """
    wrong = [name for name in switches if name not in {field.name for field in fields(Faster)}]
    if wrong:
        names = [field.name for field in fields(Faster)]
        raise VitrailError(f"there is no speed-up {wrong[0]!r}, there are {', '.join(names)}{suggestion(wrong[0], names)}")
    if not hasattr(model, "config"):
        raise VitrailError(f"speed_up needs a model, got {str(model)[:80]!r}; try vitrail.load on it first")
    how = replace(how or Faster(), **switches)
    if how.image is not None and how.image != model.config.image:
        raise VitrailError(
            f"the model takes images of {times(model.config.image)}, got image={times(how.image)}; "
            f"load it with vitrail.load(..., image={how.image})"
        )
    from vitrail.models.merged import compiled, merged

    model = merged(model, how)
    return compiled(model) if how.compile else model
