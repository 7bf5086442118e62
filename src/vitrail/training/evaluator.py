"""Evaluation during training: the metrics that weights are selected by, and what else the task monitors.

The ranks share the images of an evaluation, each of which counts once; the monitors run on every rank.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vitrail.data.loader import Loader, build_eval_loader
from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.models.build import get_encoder
from vitrail.recipes.recipe import Recipe
from vitrail.tasks.task import Task
from vitrail.training.build import build_model
from vitrail.training.monitors import compute_attention_stats, compute_reconstructions, knn_accuracy, knn_seconds
from vitrail.training.parallel import full_tensor, is_sharded
from vitrail.training.process_group import ProcessGroup
from vitrail.training.run import Run
from vitrail.training.state import TrainState

EVAL_BATCH_SIZE = 256  # images, over all ranks


@dataclass
class Evaluator:
    """Evaluates the model of a run during training."""

    recipe: Recipe
    data: DatasetSplits
    task: Task
    run: Run
    group: ProcessGroup
    device: torch.device
    workers: int

    @property
    def selection_set(self) -> Dataset:
        """The dataset that weights are selected on: validation, or train if there is none."""
        return self.data.validation if len(self.data.validation) else self.data.train

    def eval_model(self, state: TrainState) -> nn.Module:
        """Return the model to evaluate. Sharded weights are gathered for it."""
        if not is_sharded(state.model):
            return state.eval_model
        model = build_model(self.recipe, self.task, resumed=True).to(self.device)
        targets = model.state_dict()
        with torch.no_grad():
            for name, value in state.eval_model.state_dict().items():  # one by one, so that only one tensor exists twice
                targets[name].copy_(full_tensor(value))
        return model

    def loader(self, dataset: Dataset, state: TrainState) -> Loader:
        """Return an evaluation loader; a batch that fits in training fits here as well."""
        batch = min(
            EVAL_BATCH_SIZE, (state.micro_batch_size or self.recipe.batch_size // self.group.world_size) * self.group.world_size
        )
        loader = build_eval_loader(
            dataset, self.recipe.preprocess, batch, rank=self.group.rank, world_size=self.group.world_size
        )
        return replace(loader, max_bad_fraction=self.recipe.max_bad_fraction, targets=self.task.targets)

    def evaluate(self, model: nn.Module, dataset: Dataset, state: TrainState) -> dict[str, Any]:
        return self.task.evaluate(model, self.loader(dataset, state), self.workers, self.group.all_gather_rows)

    def details(self, scores: dict[str, Any]) -> dict[str, Any]:
        """Return what the task says of an evaluation besides its metrics."""
        return self.task.split_details(scores)

    def monitor(self, model: nn.Module, step: int) -> dict[str, Any]:
        """Compute what the task monitors besides its metrics."""
        monitored: dict[str, Any] = {}
        for name in self.task.monitors:
            monitored |= MONITORS[name](self, model, step)
        return monitored

    def overhead_seconds(self, model: nn.Module) -> float:
        """Estimate the seconds of the monitors per evaluation."""
        if "knn" not in self.task.monitors:
            return 0.0
        return knn_seconds(get_encoder(model), self.data.train, self.selection_set, self.workers)


def _attention(evaluator: Evaluator, model: nn.Module, step: int) -> dict[str, Any]:
    stats = compute_attention_stats(get_encoder(model), evaluator.selection_set, evaluator.recipe.preprocess)
    return {} if stats is None else {"attention_stats": stats}


def _reconstructions(evaluator: Evaluator, model: nn.Module, step: int) -> dict[str, Any]:
    """Save reconstructions of masked patches, which show more than the loss does."""
    images = compute_reconstructions(model, evaluator.task, evaluator.selection_set, evaluator.recipe.preprocess)
    if images:
        evaluator.run.save_reconstructions(step, images)
    return {}


def _knn(evaluator: Evaluator, model: nn.Module, step: int) -> dict[str, Any]:
    """Compute the k-NN accuracy of the features: the loss of a self-supervised run alone says little."""
    accuracy = knn_accuracy(get_encoder(model), evaluator.data.train, evaluator.selection_set, evaluator.workers)
    return {} if accuracy is None else {"knn": accuracy}


MONITORS: dict[str, Callable[[Evaluator, nn.Module, int], dict[str, Any]]] = {
    "attention": _attention,
    "reconstructions": _reconstructions,
    "knn": _knn,
}
