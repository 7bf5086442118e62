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
from vitrail.models.cost import cost
from vitrail.models.settings import ResNetConfig
from vitrail.recipes.demo import demo
from vitrail.recipes.given import Given
from vitrail.train.loop import Machine, fit
from vitrail.train.recipe import Optim, Recipe

RESNET = ResNetConfig(stages=(1, 5), width=32, image=(28, 28), channels=1, classes=10)
OPTIMS = {
    "sgd-0.05": Optim(kind="sgd", lr=0.05, weight_decay=1e-4),  # as in the recipe resnet, for a batch size of 128
    "sgd-0.2": Optim(kind="sgd", lr=0.2, weight_decay=1e-4),
    "adamw-0.002": Optim(kind="adamw", lr=2e-3, weight_decay=0.1, clip=1.0),
    "adamw-0.006": Optim(kind="adamw", lr=6e-3, weight_decay=0.1, clip=1.0),
}
TRIED = 0.1  # of the steps


def main(folder: str = "runs/robustness", share: str = "1") -> None:
    root, vit = Path(folder), demo(Given())
    vit = vit if share == "1" else vit.lasting(round(vit.steps * float(share)))
    plain = replace(vit, name="resnet", model=RESNET)
    for name, settings in {"vit": vit, "resnet": plain}.items():
        counted = cost(settings.model)
        say(f"{name}: {counted.parameters:,} parameters, {counted.macs:,} MACs per image")
    tried = {
        name: trained(replace(plain, optim=optim).lasting(round(plain.steps * TRIED)), root / name)
        for name, optim in OPTIMS.items()
    }
    best = max(tried, key=lambda name: tried[name]["best"]["top1"])
    say(f"best on validation: {best}")
    trained(vit, root / "vit")
    trained(replace(plain, optim=OPTIMS[best]), root / "resnet")
    sys.exit(
        run(
            [
                "robustness",
                str(root / "vit"),
                str(root / "resnet"),
                "fashion",
                "--out",
                str(root / "robust.html"),
                "--batch",
                "250",
            ]
        )
    )


def trained(recipe: Recipe, folder: Path) -> dict[str, Any]:
    result = fit(recipe, folder, Machine("cpu"))
    found = f"validation {result['best']['top1']:.2%}, test {result['test']['top1']:.2%}"
    say(f"{folder.name}: {recipe.steps} steps, {found}, {result['seconds']:.0f} s")
    return result


def say(words: str) -> None:
    print(words, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
