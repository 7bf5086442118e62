"""A ViT and a ResNet of similar size under image corruptions: ``python -m scripts.robustness [FOLDER] [FRACTION]``.

The ViT is the demo's. The ResNet is a BiT with as many MACs and 12 % fewer parameters, trained on the same images for as many
steps, with the same augmentation and the same EMA; its optimiser is the best of four on validation after a tenth of the
steps. Both are then evaluated on the same corrupted test images. FRACTION: of the steps, for a quick test. Interrupted runs
are resumed.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.cli.main import run
from vitrail.models.config import ResNetConfig
from vitrail.models.cost import cost
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.demo import demo
from vitrail.recipes.recipe import Optim, Recipe
from vitrail.training.trainer import Hardware, fit

RESNET = ResNetConfig(stages=(1, 5), width=32, image=(28, 28), channels=1, classes=10)
OPTIMS = {
    "sgd-0.05": Optim(name="sgd", lr=0.05, weight_decay=1e-4),  # as in the recipe resnet, for a batch size of 128
    "sgd-0.2": Optim(name="sgd", lr=0.2, weight_decay=1e-4),
    "adamw-0.002": Optim(name="adamw", lr=2e-3, weight_decay=0.1, grad_clip=1.0),
    "adamw-0.006": Optim(name="adamw", lr=6e-3, weight_decay=0.1, grad_clip=1.0),
}
SEARCH_FRACTION = 0.1  # of the steps


def main(folder: str = "runs/robustness", fraction: str = "1") -> None:
    root, vit = Path(folder), demo(RecipeContext())
    vit = vit if fraction == "1" else vit.with_steps(round(vit.steps * float(fraction)))
    resnet_recipe = replace(vit, name="resnet", model=RESNET)
    for name, settings in {"vit": vit, "resnet": resnet_recipe}.items():
        costs = cost(settings.model)
        log(f"{name}: {costs.parameters:,} parameters, {costs.macs:,} MACs per image")
    search = {
        name: train(replace(resnet_recipe, optim=optim).with_steps(round(resnet_recipe.steps * SEARCH_FRACTION)), root / name)
        for name, optim in OPTIMS.items()
    }
    best = max(search, key=lambda name: search[name]["best"]["top1"])
    log(f"best on validation: {best}")
    train(vit, root / "vit")
    train(replace(resnet_recipe, optim=OPTIMS[best]), root / "resnet")
    sys.exit(
        run(
            [
                "robustness",
                str(root / "vit"),
                str(root / "resnet"),
                "fashion",
                "--out",
                str(root / "robust.html"),
                "--batch-size",
                "250",
            ]
        )
    )


def train(recipe: Recipe, folder: Path) -> dict[str, Any]:
    result = fit(recipe, folder, hardware=Hardware("cpu")).result
    scores = f"validation {result['best']['top1']:.2%}, test {result['test']['top1']:.2%}"
    log(f"{folder.name}: {recipe.steps} steps, {scores}, {result['seconds']:.0f} s")
    return result


def log(message: str) -> None:
    print(message, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
