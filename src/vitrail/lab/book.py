"""The experiments by name, each in a module of its own, which is read when it is asked for."""

from importlib import import_module

from vitrail.errors import VitrailError, suggestion
from vitrail.lab.experiment import Experiment

NAMES = (
    "variants",
    "compute",
    "shift",
    "patches",
    "data-scale",
    "compute-scale",
    "positions",
    "cls-or-gap",
    "norm",
    "depth-width",
    "resolution",
    "masked",
    "optimisers",
    "inside",
    "regularise",
)


def experiment(name: str) -> Experiment:
    if name not in NAMES:
        hint = suggestion(name, NAMES) or f"; there are {', '.join(NAMES)}"
        raise VitrailError(f"there is no experiment {name!r}{hint}")
    found: Experiment = import_module(f"vitrail.lab.{name.replace('-', '_')}").EXPERIMENT
    return found
