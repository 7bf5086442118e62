"""What a run looks at on its way: the scores that weights are chosen by, and what else shows that it gets somewhere.

Several processes share the pictures of an evaluation, each of which counts once; what else is looked at, all of them look at.
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

EVALUATED = 256  # pictures at a time


@dataclass
class Looks:
    recipe: Recipe
    data: Data
    task: Task
    team: Team
    device: torch.device
    workers: int

    @property
    def chosen(self) -> Source:
        """What weights are chosen on."""
        return self.data.validation if len(self.data.validation) else self.data.train

    def shown(self, state: State) -> nn.Module:
        """The model to look at. Where ranks hold parts of it, its weights are brought together for the look."""
        if not sharded(state.model):
            return state.shown
        model = model_of(self.recipe, self.data, resumed=True).to(self.device)
        places = model.state_dict()
        with torch.no_grad():
            for name, value in state.shown.state_dict().items():  # one by one: all of it is there once, not twice
                places[name].copy_(whole(value))
        return model

    def loader(self, source: Source, state: State) -> Loader:
        """What fits when training fits here all the more."""
        batch = min(EVALUATED, (state.micro or self.recipe.batch // self.team.ranks) * self.team.ranks)
        made = evaluation(source, self.recipe.preprocess, batch, rank=self.team.rank, ranks=self.team.ranks)
        return replace(made, tolerated=self.recipe.tolerated)

    def scores(self, model: nn.Module, source: Source, state: State) -> dict[str, Any]:
        return self.task.evaluate(model, self.loader(source, state), self.workers, self.team.rows)

    def heads(self, model: nn.Module) -> dict[str, list[float]] | None:
        return inside(encoder_of(model), self.chosen, self.recipe.preprocess)

    def unlabelled(self, model: nn.Module, run: Run, step: int) -> dict[str, float]:
        """What else is worth knowing, and seeing, where the loss alone says little."""
        if not isinstance(model, Masked) or not isinstance(self.task, Masks):
            return {}
        pictures = reconstructions(model, self.task, self.chosen, self.recipe.preprocess)
        if pictures:
            run.keep_reconstructions(step, pictures)
        alike = neighbours(model, self.data.train, self.chosen, self.workers)
        return {} if alike is None else {"knn": alike}

    def seconds(self, model: nn.Module) -> float:
        """Of what every evaluation does beside its scores."""
        return seconds(model, self.data.train, self.chosen, self.workers) if isinstance(model, Masked) else 0.0
