"""Evaluation during training: the metrics that weights are selected by, and what else shows progress.

The ranks share the images of an evaluation, each of which counts once; the other monitors run on every rank.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vitrail.data.loader import Loader, build_eval_loader
from vitrail.data.sources.dataset import Dataset, DatasetSplits
from vitrail.models.masked_autoencoders import MaskedModel
from vitrail.tasks.masked_image import MaskedImageTask
from vitrail.tasks.task import Task
from vitrail.training.attention_monitor import compute_attention_stats
from vitrail.training.build import build_model, get_encoder
from vitrail.training.parallel import full_tensor, is_sharded
from vitrail.training.process_group import ProcessGroup
from vitrail.training.recipe import Recipe
from vitrail.training.run import Run
from vitrail.training.ssl_monitor import compute_reconstructions, knn_accuracy, knn_seconds
from vitrail.training.state import TrainState

EVAL_BATCH_SIZE = 256  # images, over all ranks


@dataclass
class Evaluator:
    """Evaluates the model of a run during training."""

    recipe: Recipe
    data: DatasetSplits
    task: Task
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
        model = build_model(self.recipe, self.data, resumed=True).to(self.device)
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
        return replace(loader, max_bad_fraction=self.recipe.max_bad_fraction)

    def evaluate(self, model: nn.Module, dataset: Dataset, state: TrainState) -> dict[str, Any]:
        return self.task.evaluate(model, self.loader(dataset, state), self.workers, self.group.all_gather_rows)

    def attention_stats(self, model: nn.Module) -> dict[str, list[float]] | None:
        return compute_attention_stats(get_encoder(model), self.selection_set, self.recipe.preprocess)

    def ssl_metrics(self, model: nn.Module, run: Run, step: int) -> dict[str, float]:
        """Compute the metrics of a self-supervised run, whose loss alone says little, and save its reconstructions."""
        if not isinstance(model, MaskedModel) or not isinstance(self.task, MaskedImageTask):
            return {}
        images = compute_reconstructions(model, self.task, self.selection_set, self.recipe.preprocess)
        if images:
            run.save_reconstructions(step, images)
        accuracy = knn_accuracy(model, self.data.train, self.selection_set, self.workers)
        return {} if accuracy is None else {"knn": accuracy}

    def overhead_seconds(self, model: nn.Module) -> float:
        """Seconds of the other monitors per evaluation."""
        return knn_seconds(model, self.data.train, self.selection_set, self.workers) if isinstance(model, MaskedModel) else 0.0
