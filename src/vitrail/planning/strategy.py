"""Parallel strategy and micro-batch size that fit into the memory of a rank, for runs and for plans. Torch-free."""

from dataclasses import dataclass

from vitrail.config import override
from vitrail.planning.memory_estimate import (
    MemoryBreakdown,
    ModelCosts,
    Strategy,
    compute_model_costs,
    estimate_memory,
    max_micro_batch,
)
from vitrail.recipes.recipe import Recipe

MEMORY_FRACTION = 0.9  # of the free memory that is planned with
CANDIDATES = ("parallel=ddp", "parallel=fsdp", "activation_checkpointing=true", "micro_batch_size=1")  # may save memory


@dataclass(frozen=True)
class StrategyPlan:
    """A parallel strategy, with its micro-batches and memory."""

    strategy: Strategy
    max_images: int  # largest micro-batch that fits; 0: not even one image
    micro_batch_size: int  # images per micro-batch
    micro_batches: int
    memory: MemoryBreakdown
    fits: bool


def plan_strategies(recipe: Recipe, costs: ModelCosts, world_size: int, budget: float) -> tuple[StrategyPlan, ...]:
    """Plan each strategy that so many ranks can use, with so many bytes on each."""
    strategies: tuple[Strategy, ...] = ("single",) if world_size == 1 else ("ddp", "fsdp")
    return tuple(_plan_strategy(recipe, costs, strategy, world_size, budget) for strategy in strategies)


def choose_strategy(recipe: Recipe, plans: tuple[StrategyPlan, ...]) -> StrategyPlan:
    """Choose the recipe's strategy; if it leaves that open, DDP if it fits, else FSDP2."""
    named = [plan for plan in plans if plan.strategy == recipe.parallel]
    return next((plan for plan in named or plans if plan.fits), (named or plans)[-1])


def settings_that_fit(recipe: Recipe, world_size: int, budget: float) -> list[str]:
    """List the overrides that would make a recipe fit, each on its own."""
    fitting = []
    for setting in CANDIDATES:
        changed = override(recipe, [setting])
        if choose_strategy(changed, plan_strategies(changed, compute_model_costs(changed), world_size, budget)).fits:
            fitting.append(f"--set {setting}")
    return fitting


def _plan_strategy(recipe: Recipe, costs: ModelCosts, strategy: Strategy, world_size: int, budget: float) -> StrategyPlan:
    """Plan the recipe's micro-batch, or the largest that fits of the rank's batch, a half, a quarter ... of it."""
    batch = max(recipe.batch_size // world_size, 1)
    size = min(recipe.micro_batch_size or batch, batch)
    while True:
        micro_batches = -(-batch // size)
        memory = estimate_memory(recipe, costs, strategy, world_size, size, micro_batches)
        fits = memory.total <= budget
        if fits or size == 1 or recipe.micro_batch_size is not None:
            max_images = max_micro_batch(recipe, costs, strategy, world_size, budget)
            return StrategyPlan(strategy, max_images, size, micro_batches, memory, fits)
        size = -(-size // 2)
