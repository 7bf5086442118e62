"""Training step of segmentation against classification: ``python -m scripts.segmentation_throughput [CLASSES] [HEAD]``.

Forward pass, loss and backward pass of ViT-Ti/16 on the same 224 x 224 images, in turns in one process, best of several.
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

BATCH_SIZE, ROUNDS = 16, 15
IMAGE = (224, 224)


def main(classes: int, head: str) -> None:
    torch.set_num_threads(1)
    names = tuple(map(str, range(classes)))
    images = torch.randn(BATCH_SIZE, 3, *IMAGE)
    targets = {"classification": torch.arange(BATCH_SIZE) % classes, "segmentation": torch.zeros(BATCH_SIZE, *IMAGE).short()}
    configs: dict[str, TaskConfig] = {
        "classification": Classification(),
        "segmentation": Segmentation(head=head, classes=classes),  # type: ignore[arg-type]
    }
    tasks = {
        name: build_task(config, variant("Ti/16", image=IMAGE, classes=config.num_outputs(names)), vit_preprocess(IMAGE), names)
        for name, config in configs.items()
    }
    models = {name: task.build_model(vitrail.build(task.model)) for name, task in tasks.items()}
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(ROUNDS):
        for name, task in tasks.items():
            start = time.perf_counter()
            task.loss(models[name], Batch(images, targets[name], torch.arange(BATCH_SIZE)))[0].backward()
            best[name] = min(best[name], time.perf_counter() - start)
    ratio = best["segmentation"] / best["classification"]
    print(f"a step with the {head} head and {classes} classes takes {ratio:.3f} of the time of classification")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 3, sys.argv[2] if sys.argv[2:] else "linear")
