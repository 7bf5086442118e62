"""Detection against classification with the same backbone: ``python -m scripts.detection_latency [CLASSES]``.

ViT-Ti/16 on one 320 x 320 image, from pixels to boxes or probabilities; and a training step on 8 images of 20 objects each.
In turns in one process, best of many, in processor time of one thread and in wall-clock time of all.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import vitrail
from vitrail.data.loader import Batch
from vitrail.data.preprocess import vit_preprocess
from vitrail.models.variants import variant
from vitrail.recipes.task_config import Classification, Detection, TaskConfig
from vitrail.tasks.registry import build_task
from vitrail.tasks.task import Task

IMAGE = (320, 320)
BATCH_SIZE, OBJECTS = 8, 20
LATENCY_ROUNDS, STEP_ROUNDS = 60, 9
CONFIGS = {
    "classification": Classification(),
    "detection": Detection(classes=0),
    "detection, quarters": Detection(classes=0, layers="quarters"),
}


def main(classes: int) -> None:
    torch.manual_seed(0)
    threads, names = torch.get_num_threads(), tuple(map(str, range(classes)))
    tasks = {name: _task(config.for_classes(names), names) for name, config in CONFIGS.items()}
    models = {name: task.build_model(vitrail.build(task.model)) for name, task in tasks.items()}
    image, batch = torch.randn(1, 3, *IMAGE), torch.randn(BATCH_SIZE, 3, *IMAGE)

    def predict(name: str) -> Callable[[], Any]:
        @torch.inference_mode()
        def work() -> Any:
            return tasks[name].export_outputs(models[name](image))

        return work

    def step(name: str) -> Callable[[], Any]:
        targets = torch.zeros(BATCH_SIZE, dtype=torch.int64) if name == "classification" else _objects(classes)
        return lambda: tasks[name].loss(models[name], Batch(batch, targets, torch.arange(BATCH_SIZE)))[0].backward()

    for model in models.values():
        model.eval()
    predictions = {name: predict(name) for name in tasks}
    _print_ratios("one image, wall-clock time", _best(predictions, time.perf_counter, LATENCY_ROUNDS))
    torch.set_num_threads(1)
    _print_ratios("one image, processor time", _best(predictions, time.process_time, LATENCY_ROUNDS))
    for model in models.values():
        model.train()
    if STEP_ROUNDS:
        _print_ratios(
            "training step, processor time", _best({name: step(name) for name in tasks}, time.process_time, STEP_ROUNDS)
        )
    torch.set_num_threads(threads)


def _task(config: TaskConfig, names: tuple[str, ...]) -> Task:
    model = variant("Ti/16", image=IMAGE, classes=config.num_outputs(names))
    return build_task(config, model, vit_preprocess(IMAGE), names)


def _objects(classes: int) -> Tensor:
    corners = torch.rand(BATCH_SIZE, OBJECTS, 2) * 240
    sides = 16 + 60 * torch.rand(BATCH_SIZE, OBJECTS, 2)
    labels = torch.randint(classes, (BATCH_SIZE, OBJECTS, 1)).float()
    return torch.cat([corners, corners + sides, labels, torch.zeros_like(labels)], dim=2)


def _best(contestants: dict[str, Callable[[], Any]], clock: Callable[[], float], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(rounds):
        for name, work in contestants.items():
            start = clock()
            work()
            best[name] = min(best[name], clock() - start)
    return best


def _print_ratios(title: str, best: dict[str, float]) -> None:
    for name, seconds in best.items():
        if name != "classification":
            print(f"{title}: {name} takes {seconds / best['classification']:.3f} of classification")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)
