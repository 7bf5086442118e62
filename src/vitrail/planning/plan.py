"""Memory, time and cost of a recipe on a cluster. Torch-free.

    FLOPs per image    2 x MACs forward, 4 x MACs backward; with activation checkpointing the blocks' 2 x MACs once more
    seconds per step   FLOPs x batch size / (world size x peak x MFU)
    days               seconds x steps / 86,400
    cost               days x 24 x world size x price per GPU-hour

Not included: ranks that wait for each other, slow data loading, evaluations and checkpoints. MFU (model FLOPs utilisation) is
the fraction of an accelerator's peak that training reaches, all of that included: measure yours on a few steps where it
matters. For memory see ``memory_estimate``, for the strategy ``strategy``.
"""

import math
from dataclasses import dataclass

from vitrail.errors import VitrailError
from vitrail.planning.accelerators import Accelerator
from vitrail.planning.memory_estimate import ModelCosts, compute_model_costs
from vitrail.planning.strategy import MEMORY_FRACTION, StrategyPlan, choose_strategy, plan_strategies
from vitrail.recipes.recipe import Recipe

DAY = 86_400  # seconds
DEFAULT_MFU = 0.35  # between those of the paper's own runs on TPUs, by its core-days: 0.32, 0.43 and 0.39
MAX_RANKS, MAX_IMAGES = 10**6, 10**18  # ranks and images, far beyond any cluster


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
class Plan:
    """Memory, time and cost of a recipe on a cluster."""

    recipe: Recipe
    cluster: Cluster
    costs: ModelCosts
    memory_budget: int  # bytes
    per_rank_batch: int  # images of a batch per rank
    strategies: tuple[StrategyPlan, ...]
    strategy_plan: StrategyPlan  # what the run would choose
    total_flops: float  # of the whole run
    peak_flops: float  # FLOP/s of one accelerator
    seconds_per_step: float  # per step
    days: float
    gpu_hours: float  # GPU-hours
    cost: float  # dollars


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
    strategies = plan_strategies(recipe, costs, world_size, memory_budget)
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
        strategies,
        choose_strategy(recipe, strategies),
        flops,
        peak,
        seconds,
        days,
        gpu_hours,
        gpu_hours * cluster.gpu_hour_price,
    )
