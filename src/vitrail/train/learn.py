"""The loop without a run: nothing is written, nothing goes on later. For experiments that fit into memory."""

from collections.abc import Iterator

from vitrail.data.loader import training
from vitrail.data.sources.source import Source
from vitrail.models.build import Model
from vitrail.models.masked import Masked
from vitrail.tasks.task import Task
from vitrail.train.recipe import Recipe
from vitrail.train.state import State, fresh
from vitrail.train.step import train_step


def learn(model: Model | Masked, task: Task, source: Source, recipe: Recipe, workers: int | None = None) -> Iterator[State]:
    """The state after every step; its ``shown`` is the model to look at."""
    state = fresh(model.train(), recipe)
    loader = training(
        source, recipe.preprocess, recipe.batch, recipe.augment, recipe.seed, tolerated=recipe.tolerated, window=recipe.window
    )
    for batch in loader.batches(0, recipe.steps, workers):
        train_step(state, task, batch, recipe)
        yield state
