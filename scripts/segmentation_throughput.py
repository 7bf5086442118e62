"""Training step of segmentation against classification: ``python -m scripts.segmentation_throughput [CLASSES]``.

Forward pass, loss and backward pass of ViT-Ti/16 on the same 224 x 224 images, in turns in one process, best of several, in
processor time of one thread. Every head is measured, the linear one on the tokens of the last block and of four.
"""

import sys
import time

import torch

import vitrail
from vitrail.data.loader import Batch
from vitrail.data.preprocess import vit_preprocess
from vitrail.models.variants import variant
from vitrail.recipes.task_config import Classification, Segmentation, TaskConfig
from vitrail.tasks.registry import build_task

BATCH_SIZE, ROUNDS = 16, 9
IMAGE = (224, 224)


def main(classes: int) -> None:
    torch.set_num_threads(1)
    names = tuple(map(str, range(classes)))
    images, indices = torch.randn(BATCH_SIZE, 3, *IMAGE), torch.arange(BATCH_SIZE)
    masks = torch.zeros(BATCH_SIZE, *IMAGE).short()
    configs: dict[str, TaskConfig] = {
        "classification": Classification(),
        "linear": Segmentation(classes=classes),
        "linear, quarters": Segmentation(classes=classes, layers="quarters"),
        "eomt": Segmentation(classes=classes, head="eomt"),
        "segmenter": Segmentation(classes=classes, head="segmenter"),
    }
    tasks = {
        name: build_task(config, variant("Ti/16", image=IMAGE, classes=config.num_outputs(names)), vit_preprocess(IMAGE), names)
        for name, config in configs.items()
    }
    models = {name: task.build_model(vitrail.build(task.model)) for name, task in tasks.items()}
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(ROUNDS):
        for name, task in tasks.items():
            targets = indices % classes if name == "classification" else masks
            start = time.process_time()
            task.loss(models[name], Batch(images, targets, indices))[0].backward()
            best[name] = min(best[name], time.process_time() - start)
    for name in [*tasks][1:]:
        ratio = best[name] / best["classification"]
        print(f"{name}: {ratio:.3f} of the time of a step of classification, {classes} classes")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3)
