"""Thresholds of classes: the score or probability from which on one is predicted."""

from collections.abc import Mapping
from typing import Any

from vitrail.errors import VitrailError

DEFAULT_THRESHOLD = 0.5


def check_threshold(threshold: float) -> float:
    """Return a threshold that a user has named."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
        raise VitrailError(f"threshold must be from 0 to 1, got {threshold!r}; try threshold={DEFAULT_THRESHOLD}")
    return float(threshold)


def read_thresholds(state: Mapping[str, Any], classes: int) -> tuple[float, ...] | None:
    """Return the thresholds of the classes of a model from what ``Task.state`` has saved; None if there are none."""
    thresholds = state.get("thresholds")
    if thresholds is None:
        return None
    is_valid = isinstance(thresholds, list) and all(type(each) in (int, float) and 0 <= each <= 1 for each in thresholds)
    if not is_valid or len(thresholds) != classes:
        raise VitrailError(f"the thresholds of the model must be {classes} numbers from 0 to 1; it is damaged")
    return tuple(map(float, thresholds))
