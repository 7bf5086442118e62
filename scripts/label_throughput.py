"""Throughput of several labels per image against one: ``python -m scripts.label_throughput TABLE.csv``.

The table's own labels against the first label of each image, in turns in one process, best of several: batches of augmented
images with their targets, and whole training steps of ViT-Ti/16.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

import vitrail
from vitrail.augment.policy import get_policy
from vitrail.data.loader import Batch, Loader, build_train_loader
from vitrail.data.preprocess import vit_preprocess
from vitrail.data.sources.dataset import DatasetSplits, Subset
from vitrail.models.variants import variant
from vitrail.recipes.task_config import Classification, MultiLabel
from vitrail.tasks.registry import build_task
from vitrail.tasks.task import Task

BATCH_SIZE, BATCHES, STEPS, ROUNDS = 32, 12, 2, 7
IMAGE = (224, 224)


def first_labels(data: DatasetSplits) -> DatasetSplits:
    """Return the dataset with the first label of each image as its only one."""
    label_sets = data.train.label_sets
    assert label_sets is not None, "the table must have several labels per image"
    first = np.array([(label_sets.classes_of(index) or [0])[0] for index in range(len(label_sets))])
    plain = data.train.dataset if isinstance(data.train, Subset) else data.train  # without the sets of labels
    return replace(data, train=Subset(plain, np.arange(len(first)), first, data.class_names))


def build(data: DatasetSplits, config: Classification | MultiLabel) -> tuple[Task, Loader]:
    preprocess = vit_preprocess(IMAGE)
    task = build_task(config, variant("Ti/16", image=IMAGE, classes=len(data.class_names)), preprocess, data.class_names)
    loader = build_train_loader(data.train, preprocess, BATCH_SIZE, get_policy("light1"))
    return task.with_data(data), replace(loader, targets=task.targets)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main(source: str) -> None:
    torch.set_num_threads(1)
    data = vitrail.open_dataset(source)
    contestants = {"one label": build(first_labels(data), Classification()), "several": build(data, MultiLabel())}
    models = {name: task.build_model(vitrail.build(task.model)) for name, (task, _) in contestants.items()}
    batches: dict[str, Batch] = {name: loader.batch(0) for name, (_, loader) in contestants.items()}

    def load(name: str) -> None:
        for step in range(BATCHES):
            contestants[name][1].batch(step)

    def step(name: str) -> None:
        for _ in range(STEPS):
            contestants[name][0].loss(models[name], batches[name])[0].backward()

    for title, run in (("batches", load), ("training steps", step)):
        best = dict.fromkeys(contestants, float("inf"))
        for _ in range(ROUNDS):
            for name in contestants:
                best[name] = min(best[name], seconds(partial(run, name)))
        print(f"{title}: several labels at {best['one label'] / best['several']:.3f} of the speed of one")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
