"""Vitrail: the Vision Transformer, end to end and transparent.

Public names are imported on first use, so that ``import vitrail`` and ``vitrail --help`` are fast.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail import explain as explain
    from vitrail.data.sources.open import pictures as pictures
    from vitrail.errors import VitrailError as VitrailError
    from vitrail.evaluate.evaluate import measure as measure
    from vitrail.evaluate.features import embed as embed
    from vitrail.evaluate.predict import predict as predict
    from vitrail.evaluate.ready import prepare as prepare
    from vitrail.evaluate.robust import stress as stress
    from vitrail.export.engine import open_engine as open_engine
    from vitrail.export.ship import ship as ship
    from vitrail.layers.tap import recording as recording
    from vitrail.models.build import build as build
    from vitrail.models.cost import cost as cost
    from vitrail.models.faster import faster as faster
    from vitrail.models.variants import variant as variant
    from vitrail.train.loop import fit as fit
    from vitrail.train.past import model_at as model_at
    from vitrail.weights.checkpoint import save as save
    from vitrail.weights.load import load as load
    from vitrail.weights.masked import load_masked as load_masked

_homes = {
    "VitrailError": "errors",
    "build": "models.build",
    "cost": "models.cost",
    "embed": "evaluate.features",
    "faster": "models.faster",
    "fit": "train.loop",
    "load": "weights.load",
    "load_masked": "weights.masked",
    "measure": "evaluate.evaluate",
    "model_at": "train.past",
    "open_engine": "export.engine",
    "pictures": "data.sources.open",
    "predict": "evaluate.predict",
    "prepare": "evaluate.ready",
    "recording": "layers.tap",
    "save": "weights.checkpoint",
    "ship": "export.ship",
    "stress": "evaluate.robust",
    "variant": "models.variants",
}
_rooms = ["explain"]

__version__ = metadata.version("vitrail")
__all__ = sorted([*_homes, *_rooms])


def __getattr__(name: str) -> Any:
    if name in _rooms:
        return import_module(f"vitrail.{name}")
    if name in _homes:
        return getattr(import_module(f"vitrail.{_homes[name]}"), name)
    raise AttributeError(f"module 'vitrail' has no attribute {name!r}; it offers {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
