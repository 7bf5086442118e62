"""The learning rate of a step as a fraction of its peak: a pure function, so there is no state to save.

Linear warm-up, then cosine (Loshchilov and Hutter 2017), linear, reciprocal square root (Zhai et al. 2022) or constant; the
last two may cool down linearly at the end.
"""

import math

from vitrail.train.recipe import Schedule


def rate(schedule: Schedule, step: int, steps: int) -> float:
    """Return the learning-rate factor of the update from ``step`` to ``step + 1``."""
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    done = (step - schedule.warmup) / max(steps - schedule.warmup, 1)
    match schedule.kind:
        case "cosine":
            share = 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            share = 1 - done
        case "rsqrt":
            share = math.sqrt(schedule.timescale / (schedule.timescale + step - schedule.warmup))
        case "constant":
            share = 1.0
    left = steps - step
    if schedule.kind in ("rsqrt", "constant") and left <= schedule.cooldown:
        share *= left / schedule.cooldown
    return schedule.floor + (1 - schedule.floor) * share
