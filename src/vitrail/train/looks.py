"""Evaluation during training: the metrics that weights are selected by, and what else shows progress.

The ranks share the images of an evaluation, each of which counts once; the other monitors run on every rank.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vitrail.data.loader import Loader, evaluation
from vitrail.data.sources.source import Data, Source
from vitrail.models.masked import Masked
from vitrail.tasks.masked import Masks
from vitrail.tasks.task import Task
from vitrail.train.distributed import sharded, whole
from vitrail.train.inside import inside
from vitrail.train.purpose import encoder_of, model_of
from vitrail.train.recipe import Recipe
from vitrail.train.run import Run
from vitrail.train.state import State
from vitrail.train.team import Team
from vitrail.train.unlabelled import neighbours, reconstructions, seconds

EVALUATED = 256  # images, over all ranks


@dataclass
class Looks:
    """Evaluates the model of a run during training."""

    recipe: Recipe
    data: Data
    task: Task
    team: Team
    device: torch.device
    workers: int

    @property
    def chosen(self) -> Source:
        """The dataset that weights are selected on: validation, or train if there is none."""
        return self.data.validation if len(self.data.validation) else self.data.train

    def shown(self, state: State) -> nn.Module:
        """Return the model to evaluate. Sharded weights are gathered for it."""
        if not sharded(state.model):
            return state.shown
        model = model_of(self.recipe, self.data, resumed=True).to(self.device)
        places = model.state_dict()
        with torch.no_grad():
            for name, value in state.shown.state_dict().items():  # one by one, so that only one tensor exists twice
                places[name].copy_(whole(value))
        return model

    def loader(self, source: Source, state: State) -> Loader:
        """Return an evaluation loader; a batch that fits in training fits here as well."""
        batch = min(EVALUATED, (state.micro or self.recipe.batch // self.team.ranks) * self.team.ranks)
        made = evaluation(source, self.recipe.preprocess, batch, rank=self.team.rank, ranks=self.team.ranks)
        return replace(made, tolerated=self.recipe.tolerated)

    def scores(self, model: nn.Module, source: Source, state: State) -> dict[str, Any]:
        return self.task.evaluate(model, self.loader(source, state), self.workers, self.team.rows)

    def heads(self, model: nn.Module) -> dict[str, list[float]] | None:
        return inside(encoder_of(model), self.chosen, self.recipe.preprocess)

    def unlabelled(self, model: nn.Module, run: Run, step: int) -> dict[str, float]:
        """Compute the metrics of a self-supervised run, whose loss alone says little, and save its reconstructions."""
        if not isinstance(model, Masked) or not isinstance(self.task, Masks):
            return {}
        pictures = reconstructions(model, self.task, self.chosen, self.recipe.preprocess)
        if pictures:
            run.keep_reconstructions(step, pictures)
        alike = neighbours(model, self.data.train, self.chosen, self.workers)
        return {} if alike is None else {"knn": alike}

    def seconds(self, model: nn.Module) -> float:
        """Seconds of the other monitors per evaluation."""
        return seconds(model, self.data.train, self.chosen, self.workers) if isinstance(model, Masked) else 0.0
