"""Registry of the experiments; each module is imported on demand."""

from importlib import import_module

from vitrail.errors import VitrailError, did_you_mean
from vitrail.lab.experiment import Experiment

MODULES = {
    "variants": "variants",
    "compute": "pretraining_compute",
    "shift": "shift_equivariance",
    "patches": "patch_embedding",
    "data-scale": "data_scale",
    "compute-scale": "compute_scale",
    "positions": "positions",
    "cls-or-gap": "cls_or_gap",
    "norm": "norm",
    "depth-width": "depth_width",
    "resolution": "resolution",
    "masked": "self_supervision",
    "optimisers": "optimisers",
    "inside": "attention_figures",
    "regularise": "regularisation",
}
NAMES = tuple(MODULES)


def get_experiment(name: str) -> Experiment:
    """Return an experiment by name."""
    if name not in NAMES:
        hint = did_you_mean(name, NAMES) or f"; there are {', '.join(NAMES)}"
        raise VitrailError(f"there is no experiment {name!r}{hint}")
    loaded: Experiment = import_module(f"vitrail.lab.{MODULES[name]}").EXPERIMENT
    return loaded
