"""A call of ``vitrail predict``: the model, the files and the options, however its predictions are written."""

import hashlib
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.inference.predictor import Predictor
    from vitrail.inference.tiles import TileSize
    from vitrail.inference.tta import TTAMode

DEFAULT_OVERLAP = 0.25


@dataclass(frozen=True)
class PredictJob:
    """A model, files, and how they are predicted."""

    model: str
    predictor: "Predictor"
    names: Sequence[str]
    top: int
    batch: int
    workers: int | None
    tile: "TileSize"
    overlap: float
    tta: "TTAMode | None"
    threshold: float | None
    options: dict[str, Any]  # of the model, which change its predictions
    json: bool

    def predictions(self, names: Sequence[str]) -> Generator[Any, None, None]:
        from vitrail.inference.predict import iter_predictions

        options = self.tile, self.overlap, self.tta, self.threshold
        return iter_predictions(self.predictor, names, self.top, self.batch, self.workers, *options)

    def request(self) -> dict[str, Any]:
        """Return what the predictions depend on; a folder is resumed only for the same."""
        data = hashlib.sha256(b"\0".join(os.fsencode(name) for name in self.names)).hexdigest()
        tiles = {} if self.tile in (None, "none") else {"tile": str(self.tile), "overlap": self.overlap}
        named = {name: value for name, value in (("tta", self.tta), ("threshold", self.threshold)) if value is not None}
        return {"command": "predict", **self.options, **tiles, **named, "weights": self.predictor.hash(), "data": data}


def format_counts(num_images: int, bad: int) -> str:
    return f"{num_images:,} {'image' if num_images == 1 else 'images'}, {bad:,} with an error"
