"""Registry of the experiments, by name."""

from vitrail.errors import VitrailError, did_you_mean
from vitrail.lab import (
    attention_figures,
    cls_or_gap,
    compute_scale,
    data_scale,
    depth_width,
    norm,
    optimisers,
    patch_embedding,
    positions,
    pretraining_compute,
    regularisation,
    resolution,
    self_supervision,
    shift_equivariance,
    variants,
)
from vitrail.lab.experiment import Experiment

MODULES = (
    variants, pretraining_compute, shift_equivariance, patch_embedding, data_scale, compute_scale, positions, cls_or_gap, norm,
    depth_width, resolution, self_supervision, optimisers, attention_figures, regularisation,
)  # fmt: skip
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}
NAMES = tuple(EXPERIMENTS)


def get_experiment(name: str) -> Experiment:
    """Return an experiment by name."""
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, NAMES) or f"; there are {', '.join(NAMES)}"
        raise VitrailError(f"there is no experiment {name!r}{hint}")
    return EXPERIMENTS[name]
