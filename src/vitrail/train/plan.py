"""Memory, time and cost of a recipe on a cluster. Torch-free.

    FLOPs per image    2 x MACs forward, 4 x MACs backward; with activation checkpointing the blocks' 2 x MACs once more
    seconds per step   FLOPs x batch size / (world size x peak x MFU)
    days               seconds x steps / 86,400
    cost               days x 24 x world size x price per GPU-hour

Not included: ranks that wait for each other, slow data loading, evaluations and checkpoints. MFU (model FLOPs utilisation) is
the fraction of an accelerator's peak that training reaches, all of that included: measure yours on a few steps where it
matters. For memory see ``memory_estimate``.
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
UTILISATION = 0.35  # between those of the paper's own runs on TPUs: ``paper_mfu`` gives 0.32, 0.43 and 0.39
LARGEST, MOST = 10**6, 10**18  # ranks and images, far beyond any cluster


@dataclass(frozen=True)
class Published:
    """A row of Dosovitskiy et al. 2021, Table 2: the TPUv3 core-days of its pre-training."""

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
    """MFU of a run of the paper, from the FLOPs that we count and the core-days that it reports."""
    operations = 6 * cost(row.model).macs * row.pictures * row.epochs
    return operations / (row.core_days * DAY * gpu.float32)


@dataclass(frozen=True)
class Machines:
    """Nodes with so many GPUs each, and one rank per GPU."""

    hosts: int
    gpus: int
    gpu: Accelerator
    utilisation: float = UTILISATION
    price: float | None = None  # dollars; None: the assumed price

    def __post_init__(self) -> None:
        for option, count in (("--nodes", self.hosts), ("--gpus-per-node", self.gpus)):
            if not 1 <= count <= LARGEST:
                raise VitrailError(f"{option} must be from 1 to {LARGEST:,}, got {count}; try {option} 1")
        if not 0 < self.utilisation <= 1:
            raise VitrailError(f"--mfu must be above 0 and at most 1, got {self.utilisation:g}; try {UTILISATION}")
        if self.price is not None and not 0 <= self.price < math.inf:
            raise VitrailError(f"--price-per-gpu-hour must be dollars, 0 or above, got {self.price:g}; try {self.gpu.price:g}")

    @property
    def ranks(self) -> int:
        return self.hosts * self.gpus

    @property
    def hour(self) -> float:
        return self.gpu.price if self.price is None else self.price


@dataclass(frozen=True)
class Fit:
    """A parallel strategy, with its micro-batches and memory."""

    way: Way
    most: int  # largest micro-batch that fits; 0: not even one image
    micro: int  # images per micro-batch
    pieces: int
    held: Held
    fits: bool


@dataclass(frozen=True)
class Plan:
    """Memory, time and cost of a recipe on a cluster."""

    recipe: Recipe
    machines: Machines
    known: Weighed
    room: int  # bytes
    share: int  # images of a batch per rank
    ways: tuple[Fit, ...]
    chosen: Way  # what the run would choose
    flops: float  # of the whole run
    peak: float  # FLOP/s of one accelerator
    seconds: float  # per step
    days: float
    hours: float  # GPU-hours
    cost: float  # dollars

    @property
    def fit(self) -> Fit:
        return next(each for each in self.ways if each.way == self.chosen)


def plan(recipe: Recipe, machines: Machines) -> Plan:
    ranks, known, peak = machines.ranks, weigh(recipe), machines.gpu.peak(recipe)
    if recipe.batch % ranks:
        near = -(-recipe.batch // ranks) * ranks
        raise VitrailError(
            f"batch_size must be a multiple of the world size {ranks}, got {recipe.batch}; try --set batch_size={near}"
        )
    if recipe.batch * recipe.steps > MOST:
        raise VitrailError(f"steps times batch_size must be at most {MOST:g} images, got {recipe.steps} and {recipe.batch}")
    room, share = int(SPARE * machines.gpu.memory), recipe.batch // ranks
    ways: tuple[Way, ...] = ("single",) if ranks == 1 else ("ddp", "fsdp")
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
    """Plan one strategy: a single micro-batch if it fits, else as few as fit, about equally large; or as the recipe says."""
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
    """Choose as a run does (``parallel.choose_strategy``)."""
    if machines.ranks == 1:
        return "single"
    if recipe.parallel != "auto":
        return recipe.parallel
    return "fsdp" if needed(cost(recipe.model)) > SPARE * machines.gpu.memory else "ddp"
