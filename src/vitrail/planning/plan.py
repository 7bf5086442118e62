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
from vitrail.planning.accelerators import Accelerator
from vitrail.planning.memory_estimate import (
    MemoryBreakdown,
    ModelCosts,
    Strategy,
    compute_model_costs,
    estimate_memory,
    max_micro_batch,
)
from vitrail.training.memory import MEMORY_FRACTION, training_bytes
from vitrail.training.recipe import Recipe

DAY, HOUR = 86_400, 3_600
DEFAULT_MFU = 0.35  # between those of the paper's own runs on TPUs: ``paper_mfu`` gives 0.32, 0.43 and 0.39
MAX_RANKS, MAX_IMAGES = 10**6, 10**18  # ranks and images, far beyond any cluster


@dataclass(frozen=True)
class PaperRun:
    """A row of Dosovitskiy et al. 2021, Table 2: the TPUv3 core-days of its pre-training."""

    model: str
    data: str
    num_images: int
    epochs: int  # of Table 3, which has two for L/16, 7 or 14 and 30 or 90: the longer ones, since they agree with H/14
    core_days: float


PAPER_RUNS = (
    PaperRun("H/14", "JFT-300M", 303_000_000, 14, 2_500),
    PaperRun("L/16", "JFT-300M", 303_000_000, 14, 680),
    PaperRun("L/16", "ImageNet-21k", 14_197_122, 90, 230),
)


def paper_mfu(row: PaperRun, gpu: Accelerator) -> float:
    """MFU of a run of the paper, from the FLOPs that we count and the core-days that it reports."""
    flops = 6 * cost(row.model).macs * row.num_images * row.epochs
    return flops / (row.core_days * DAY * gpu.float32_flops)


@dataclass(frozen=True)
class Cluster:
    """Nodes with so many GPUs each, and one rank per GPU."""

    nodes: int
    gpus_per_node: int
    gpu: Accelerator
    mfu: float = DEFAULT_MFU
    price_per_gpu_hour: float | None = None  # dollars; None: the assumed price

    def __post_init__(self) -> None:
        for option, count in (("--nodes", self.nodes), ("--gpus-per-node", self.gpus_per_node)):
            if not 1 <= count <= MAX_RANKS:
                raise VitrailError(f"{option} must be from 1 to {MAX_RANKS:,}, got {count}; try {option} 1")
        if not 0 < self.mfu <= 1:
            raise VitrailError(f"--mfu must be above 0 and at most 1, got {self.mfu:g}; try {DEFAULT_MFU}")
        if self.price_per_gpu_hour is not None and not 0 <= self.price_per_gpu_hour < math.inf:
            raise VitrailError(
                f"--price-per-gpu-hour must be dollars, 0 or above, got {self.price_per_gpu_hour:g}; try "
                f"{self.gpu.price_per_hour:g}"
            )

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def gpu_hour_price(self) -> float:
        return self.gpu.price_per_hour if self.price_per_gpu_hour is None else self.price_per_gpu_hour


@dataclass(frozen=True)
class StrategyPlan:
    """A parallel strategy, with its micro-batches and memory."""

    strategy: Strategy
    max_images: int  # largest micro-batch that fits; 0: not even one image
    micro_batch_size: int  # images per micro-batch
    micro_batches: int
    memory: MemoryBreakdown
    fits: bool


@dataclass(frozen=True)
class Plan:
    """Memory, time and cost of a recipe on a cluster."""

    recipe: Recipe
    cluster: Cluster
    costs: ModelCosts
    memory_budget: int  # bytes
    per_rank_batch: int  # images of a batch per rank
    strategies: tuple[StrategyPlan, ...]
    strategy: Strategy  # what the run would choose
    total_flops: float  # of the whole run
    peak_flops: float  # FLOP/s of one accelerator
    seconds_per_step: float  # per step
    days: float
    gpu_hours: float  # GPU-hours
    cost: float  # dollars

    @property
    def strategy_plan(self) -> StrategyPlan:
        return next(each for each in self.strategies if each.strategy == self.strategy)


def make_plan(recipe: Recipe, cluster: Cluster) -> Plan:
    world_size, costs, peak = cluster.world_size, compute_model_costs(recipe), cluster.gpu.peak_flops(recipe)
    if recipe.batch_size % world_size:
        nearest = -(-recipe.batch_size // world_size) * world_size
        raise VitrailError(
            f"batch_size must be a multiple of the world size {world_size}, got {recipe.batch_size}; try --set "
            f"batch_size={nearest}"
        )
    if recipe.batch_size * recipe.steps > MAX_IMAGES:
        raise VitrailError(
            f"steps times batch_size must be at most {MAX_IMAGES:g} images, got {recipe.steps} and {recipe.batch_size}"
        )
    memory_budget, per_rank_batch = int(MEMORY_FRACTION * cluster.gpu.memory), recipe.batch_size // world_size
    strategies: tuple[Strategy, ...] = ("single",) if world_size == 1 else ("ddp", "fsdp")
    flops = float(costs.flops * recipe.batch_size * recipe.steps)
    seconds = costs.flops * recipe.batch_size / (world_size * peak * cluster.mfu)
    days = seconds * recipe.steps / DAY
    gpu_hours = days * 24 * world_size
    return Plan(
        recipe,
        cluster,
        costs,
        memory_budget,
        per_rank_batch,
        tuple(_plan_strategy(recipe, costs, strategy, world_size, per_rank_batch, memory_budget) for strategy in strategies),
        _choose_strategy(recipe, cluster),
        flops,
        peak,
        seconds,
        days,
        gpu_hours,
        gpu_hours * cluster.gpu_hour_price,
    )


def _plan_strategy(
    recipe: Recipe, costs: ModelCosts, strategy: Strategy, world_size: int, per_rank_batch: int, memory_budget: int
) -> StrategyPlan:
    """Plan one strategy: a single micro-batch if it fits, else as few as fit, about equally large; or as the recipe says."""
    max_images = max_micro_batch(recipe, costs, strategy, world_size, memory_budget)
    if recipe.micro_batch_size is not None:
        micro_batch_size = min(recipe.micro_batch_size, per_rank_batch)
    elif max_images >= per_rank_batch:
        micro_batch_size = per_rank_batch
    else:
        max_accumulated = max(max_micro_batch(recipe, costs, strategy, world_size, memory_budget, micro_batches=2), 1)
        micro_batch_size = -(-per_rank_batch // -(-per_rank_batch // max_accumulated))
    micro_batches = -(-per_rank_batch // micro_batch_size)
    memory = estimate_memory(recipe, costs, strategy, world_size, micro_batch_size, micro_batches)
    return StrategyPlan(strategy, max_images, micro_batch_size, micro_batches, memory, memory.total <= memory_budget)


def _choose_strategy(recipe: Recipe, cluster: Cluster) -> Strategy:
    """Choose as a run does (``parallel.choose_strategy``)."""
    if cluster.world_size == 1:
        return "single"
    if recipe.parallel != "auto":
        return recipe.parallel
    return "fsdp" if training_bytes(cost(recipe.model)) > MEMORY_FRACTION * cluster.gpu.memory else "ddp"
