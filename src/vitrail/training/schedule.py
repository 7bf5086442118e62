"""The learning rate of a step as a fraction of its peak: a pure function, so there is no state to save.

Linear warm-up, then cosine (Loshchilov and Hutter 2017), linear, reciprocal square root (Zhai et al. 2022) or constant; the
last two may cool down linearly at the end.
"""

import math

from vitrail.recipes.recipe import Schedule


def lr_multiplier(schedule: Schedule, step: int, steps: int) -> float:
    """Return the learning-rate factor of the update from ``step`` to ``step + 1``."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    progress = (step - schedule.warmup_steps) / max(steps - schedule.warmup_steps, 1)
    match schedule.kind:
        case "cosine":
            multiplier = 0.5 * (1 + math.cos(math.pi * progress))
        case "linear":
            multiplier = 1 - progress
        case "rsqrt":
            multiplier = math.sqrt(schedule.rsqrt_timescale / (schedule.rsqrt_timescale + step - schedule.warmup_steps))
        case "constant":
            multiplier = 1.0
    remaining = steps - step
    if schedule.kind in ("rsqrt", "constant") and remaining <= schedule.cooldown_steps:
        multiplier *= remaining / schedule.cooldown_steps
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * multiplier
