"""``vitrail lab optimisers``: Table 7, Adam against SGD, here for ViT and ResNet, with Muon, over learning rates."""

from collections.abc import Sequence
from dataclasses import replace

from vitrail.lab.base import coarse, recipe, resnet, vit
from vitrail.lab.experiment import Asked, Experiment, Told, by
from vitrail.lab.show import best, cell, gap, middle, over, plain
from vitrail.lab.trial import Row, Trial
from vitrail.models.settings import ModelConfig
from vitrail.report.markup import text
from vitrail.report.page import table
from vitrail.train.recipe import Optim

RATES = {"AdamW": (1e-3, 3e-3, 1e-2), "SGD": (0.03, 0.1, 0.3), "Muon": (0.003, 0.01, 0.03)}
ARMS = (
    ("ViT", "AdamW"),
    ("ViT", "SGD"),
    ("ViT", "Muon"),
    ("ResNet", "AdamW"),
    ("ResNet", "SGD"),
)  # Muon is for Transformer blocks
PAPER = {  # Table 7: accuracy after fine-tuning, Adam and SGD of R50x1, then of R152x2, pre-trained on JFT
    "ImageNet": (77.54, 78.24, 84.97, 84.37),
    "CIFAR-10": (97.67, 97.46, 99.06, 99.07),
    "CIFAR-100": (86.07, 85.17, 92.05, 91.06),
    "Oxford-IIIT Pets": (91.11, 91.00, 95.37, 94.79),
    "Oxford Flowers-102": (94.26, 92.06, 98.62, 99.32),
    "mean": (89.33, 88.79, 94.01, 93.72),
}


def optim(kind: str, lr: float) -> Optim:
    if kind == "SGD":
        return Optim(kind="sgd", lr=lr, weight_decay=1e-4, clip=1.0)
    plain_ = Optim(lr=lr, weight_decay=0.1, clip=1.0)
    return plain_ if kind == "AdamW" else replace(plain_, kind="muon", lr=lr / 5, matrix_lr=lr)


def trials(asked: Asked) -> list[Trial]:
    like = vit(asked, patch=coarse(asked))
    models: dict[str, ModelConfig] = {"ViT": like, "ResNet": resnet(like)}
    return [
        Trial(
            {"family": family, "optimiser": kind, "lr": lr, "seed": seed}, recipe(asked, models[family], seed, optim(kind, lr))
        )
        for seed in asked.seeds
        for family, kind in ARMS
        for lr in (RATES[kind][1:2] if asked.quick else RATES[kind])
    ]


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    lines = {
        f"{family}, {kind}": {lr: found for (lr,), found in by(own, "lr").items()}
        for (family, kind), own in by(rows, "family", "optimiser").items()
    }
    chosen = {name: best(line) for name, line in lines.items()}
    cells = [
        [text(name), *(f'<span class="soft">{rate:g}:</span> {cell(found)}' for rate, found in line.items()),
         "" if chosen[name] is None else f"{chosen[name]:g}"]
        for name, line in lines.items()
    ]  # fmt: skip
    drawing = over("Test accuracy by learning rate", "learning rate", lines, lambda lr: f"{lr:g}")
    paper = table(
        ("fine-tuned on", "#R50x1, Adam", "#R50x1, SGD", "#R152x2, Adam", "#R152x2, SGD"),
        [[name, *(f"{value:.2f}%" for value in values)] for name, values in PAPER.items()],
    )
    numbers = {name: {f"{lr:g}": plain(found) for lr, found in line.items()} for name, line in lines.items()}
    places = ("low", "middle", "high") if len(cells[0]) == 5 else ("middle",)
    columns = ("model, optimiser", *(f"#{place} lr" for place in places), "#lr selected on validation")
    return Told(
        _answer(lines, chosen),
        [drawing, table(columns, cells), "<h2>The paper's Table 7</h2>", paper],
        {"arms": numbers, "best": chosen},
    )


def _answer(lines: dict[str, dict[float, list[Row]]], chosen: dict[str, float | None]) -> str:
    said = []
    for family in ("ViT", "ResNet"):
        at = {
            kind: lines[name][lr]
            for kind in RATES
            if (name := f"{family}, {kind}") in lines and (lr := chosen[name]) is not None
        }
        if len(at) < 2:
            said.append(f"for the {family} too few runs finished")
            continue
        first, second, *_ = sorted(at, key=lambda kind: -middle(at[kind]))
        apart = gap(at[first], at[second])
        how = "significantly" if apart is not None and apart.clear else "not significantly"
        said.append(
            f"for the {family}, {first} reaches {middle(at[first]):.1%}, {how} better than {second} ({middle(at[second]):.1%})"
        )
    told = "; ".join(said)
    return f"At the best learning rate of each, {told}."


EXPERIMENT = Experiment(
    name="optimisers",
    title="Table 7: Adam against SGD, and Muon",
    paper="ResNets are usually trained with SGD, but pre-trained on JFT with Adam they are better after fine-tuning on most "
    "datasets and on average, 89.33 % against 88.79 % for R50x1 and 94.01 % against 93.72 % for R152x2 (Dosovitskiy et "
    "al. 2021, D.1, Table 7). The paper has no such comparison for ViTs, and Muon is from 2024.",
    scaled="A ViT with 0.2 million parameters and sixteen patches, and a ResNet of about as many multiply-adds, trained from "
    "scratch; three learning rates per optimiser, all with gradient clipping at 1. Muon is for the matrices of a ViT's "
    "blocks, with AdamW at a fifth of its learning rate for the rest, so it is not used for the ResNet.",
    limits="The paper asks which optimiser gives better pre-trained weights after long pre-training; here the question is "
    "which learns faster in a short run. Three learning rates are few, and a best one at the edge may not be the optimum.",
    tell=tell,
    trials=trials,
)
