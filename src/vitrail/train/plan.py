"""What a recipe would take on machines that are not here: memory, time and cost. Needs no torch.

    operations of a picture   2 x MACs forward, 4 x MACs back; with recompute the blocks' 2 x MACs once more
    seconds of a step         operations x batch / (ranks x peak x utilisation)
    days                      seconds x steps / 86,400
    cost                      days x 24 x ranks x price

Not in it: ranks that wait for each other, pictures that are read too slowly, evaluations and checkpoints. Utilisation is the
share of an accelerator's peak that training reaches, all of that included: measure yours on a few steps where it matters. For
memory see ``held``.
"""

import math
from dataclasses import dataclass

from vitrail.errors import VitrailError
from vitrail.models.cost import cost
from vitrail.train.accelerators import Accelerator
from vitrail.train.held import Held, Way, Weighed, hold, most, weigh
from vitrail.train.memory import SPARE, needed
from vitrail.train.recipe import Recipe

DAY, HOUR = 86_400, 3_600
UTILISATION = 0.35  # between what the paper's own runs had of their TPUs: ``implied`` of PAPER is 0.32, 0.43 and 0.39
LARGEST, MOST = 10**6, 10**18  # ranks and pictures, far beyond any machine


@dataclass(frozen=True)
class Published:
    """A row of Dosovitskiy et al. 2021, Table 2: what its pre-training took, on TPUv3 cores."""

    model: str
    data: str
    pictures: int
    epochs: int  # of Table 3, which has two for L/16, 7 or 14 and 30 or 90: the longer ones, since they agree with H/14
    core_days: float


PAPER = (
    Published("H/14", "JFT-300M", 303_000_000, 14, 2_500),
    Published("L/16", "JFT-300M", 303_000_000, 14, 680),
    Published("L/16", "ImageNet-21k", 14_197_122, 90, 230),
)


def implied(row: Published, gpu: Accelerator) -> float:
    """The share of its peak that a core had, from the operations that we count and the days that the paper tells."""
    operations = 6 * cost(row.model).macs * row.pictures * row.epochs
    return operations / (row.core_days * DAY * gpu.float32)


@dataclass(frozen=True)
class Machines:
    """``hosts`` with so many ``gpus`` each, one rank on every one."""

    hosts: int
    gpus: int
    gpu: Accelerator
    utilisation: float = UTILISATION
    price: float | None = None  # dollars for an hour of one; none: what is assumed of it

    def __post_init__(self) -> None:
        for name in ("hosts", "gpus"):
            if not 1 <= getattr(self, name) <= LARGEST:
                raise VitrailError(f"--{name} must be from 1 to {LARGEST:,}, got {getattr(self, name)}; try --{name} 1")
        if not 0 < self.utilisation <= 1:
            raise VitrailError(f"--utilisation must be above 0 and at most 1, got {self.utilisation:g}; try {UTILISATION}")
        if self.price is not None and not 0 <= self.price < math.inf:
            raise VitrailError(
                f"--price must be dollars an hour, 0 or above, got {self.price:g}; try --price {self.gpu.price:g}"
            )

    @property
    def ranks(self) -> int:
        return self.hosts * self.gpus

    @property
    def hour(self) -> float:
        return self.gpu.price if self.price is None else self.price


@dataclass(frozen=True)
class Fit:
    """A way to share the model, with the pieces that a rank's part of the batch is computed in."""

    way: Way
    most: int  # pictures at a time that fit in one piece; 0: not one does
    micro: int  # pictures at a time to take
    pieces: int
    held: Held
    fits: bool


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    machines: Machines
    known: Weighed
    room: int  # bytes that may be planned with
    share: int  # pictures of a batch that are a rank's
    ways: tuple[Fit, ...]
    chosen: Way  # what the run would take
    flops: float  # of the whole run
    peak: float  # of one accelerator, a second
    seconds: float  # of a step
    days: float
    hours: float  # of all accelerators together
    cost: float  # dollars

    @property
    def fit(self) -> Fit:
        return next(each for each in self.ways if each.way == self.chosen)


def plan(recipe: Recipe, machines: Machines) -> Plan:
    ranks, known, peak = machines.ranks, weigh(recipe), machines.gpu.peak(recipe)
    if recipe.batch % ranks:
        near = -(-recipe.batch // ranks) * ranks
        raise VitrailError(f"batch must be a multiple of the {ranks} ranks, got {recipe.batch}; try --set batch={near}")
    if recipe.batch * recipe.steps > MOST:
        raise VitrailError(f"steps times batch must be at most {MOST:g} pictures, got {recipe.steps} and {recipe.batch}")
    room, share = int(SPARE * machines.gpu.memory), recipe.batch // ranks
    ways: tuple[Way, ...] = ("alone",) if ranks == 1 else ("ddp", "fsdp")
    flops = float(known.flops * recipe.batch * recipe.steps)
    seconds = known.flops * recipe.batch / (ranks * peak * machines.utilisation)
    days = seconds * recipe.steps / DAY
    hours = days * 24 * ranks
    return Plan(
        recipe,
        machines,
        known,
        room,
        share,
        tuple(_fit(recipe, known, way, ranks, share, room) for way in ways),
        _chosen(recipe, machines),
        flops,
        peak,
        seconds,
        days,
        hours,
        hours * machines.hour,
    )


def _fit(recipe: Recipe, known: Weighed, way: Way, ranks: int, share: int, room: int) -> Fit:
    """The whole part at once where that fits, else in as few pieces as fit, all about as large; or as the recipe says."""
    at_once = most(recipe, known, way, ranks, room)
    if recipe.micro is not None:
        micro = min(recipe.micro, share)
    elif at_once >= share:
        micro = share
    else:
        several = max(most(recipe, known, way, ranks, room, pieces=2), 1)
        micro = -(-share // -(-share // several))
    pieces = -(-share // micro)
    held = hold(recipe, known, way, ranks, micro, pieces)
    return Fit(way, at_once, micro, pieces, held, held.total <= room)


def _chosen(recipe: Recipe, machines: Machines) -> Way:
    """By the rule that a run itself goes by (``distributed.chosen``)."""
    if machines.ranks == 1:
        return "alone"
    if recipe.parallel != "auto":
        return recipe.parallel
    return "fsdp" if needed(cost(recipe.model)) > SPARE * machines.gpu.memory else "ddp"
