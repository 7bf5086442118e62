"""Registry of the experiments; each module is imported on demand."""

from importlib import import_module

from vitrail.errors import VitrailError, suggestion
from vitrail.lab.experiment import Experiment

MODULES = {
    "variants": "variants",
    "compute": "compute",
    "shift": "shift",
    "patches": "patches",
    "data-scale": "data_scale",
    "compute-scale": "compute_scale",
    "positions": "positions",
    "cls-or-gap": "cls_or_gap",
    "norm": "norm",
    "depth-width": "depth_width",
    "resolution": "resolution",
    "masked": "masked",
    "optimisers": "optimisers",
    "inside": "inside",
    "regularise": "regularise",
}
NAMES = tuple(MODULES)


def experiment(name: str) -> Experiment:
    """Return an experiment by name."""
    if name not in NAMES:
        hint = suggestion(name, NAMES) or f"; there are {', '.join(NAMES)}"
        raise VitrailError(f"there is no experiment {name!r}{hint}")
    found: Experiment = import_module(f"vitrail.lab.{MODULES[name]}").EXPERIMENT
    return found
