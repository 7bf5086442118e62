"""``vitrail lab compute-scale``: Figure 5, accuracy against training compute for several sizes of the three families."""

import math
from collections.abc import Sequence
from typing import Any

from vitrail.lab.base import BEST, families, recipe, vit
from vitrail.lab.compute import TABLE
from vitrail.lab.experiment import Asked, Experiment, Told, by
from vitrail.lab.show import cell, gap, middle, over, plain
from vitrail.lab.trial import Row, Trial
from vitrail.report.chart import chart
from vitrail.report.drawing import Drawing
from vitrail.report.markup import text
from vitrail.report.page import table

SIZES: dict[str, dict[str, Any]] = {
    "small": {"width": 32, "depth": 4, "mlp": 128},
    "middle": {"width": 64, "depth": 4, "mlp": 256},
    "large": {"width": 96, "depth": 6, "mlp": 384},
}
TOP1 = (  # ImageNet accuracy of the rows of Table 6: ViTs, ResNets, hybrids
    80.73, 84.15, 84.37, 86.30, 87.12, 88.08,
    77.54, 82.12, 80.67, 81.88, 84.97, 85.56, 87.22,
    84.90, 85.58, 85.68, 86.60, 87.12,
)  # fmt: skip
PAPER = [(said.paper, said.epochs, said.exa, top1) for said, top1 in zip(TABLE, TOP1, strict=True)]


def trials(asked: Asked) -> list[Trial]:
    sizes = {"small": SIZES["small"]} if asked.quick else SIZES
    return [
        Trial({"family": family, "size": size, "seed": seed}, recipe(asked, model, seed, BEST[family]))
        for seed in asked.seeds
        for size, changes in sizes.items()
        for family, model in families(vit(asked, **changes)).items()
    ]


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    groups = by(rows, "family", "size")
    lines: dict[str, dict[float, list[Row]]] = {}
    cells, numbers = [], []
    for (family, size), found in groups.items():
        first = found[0]
        lines.setdefault(family, {})[first.flops / 1e12] = found
        cells.append(
            [
                text(family),
                text(size),
                f"{first.parameters:,}",
                f"{first.macs / 1e6:.2f} M",
                f"{first.flops / 1e12:.3g}",
                cell(found),
            ]
        )
        numbers.append(plain(found, family=family, size=size, flops=first.flops, parameters=first.parameters, macs=first.macs))
    drawing = over("Test accuracy by training compute", "training teraFLOPs", lines, lambda flops: f"{flops:.2g}")
    ours = table(("family", "size", "#parameters", "#MACs per image", "#teraFLOPs", "#test"), cells)
    paper = table(
        ("pre-trained on JFT", "#epochs", "#exaFLOPs", "#ImageNet"),
        [[text(name), str(epochs), f"{flops:,}", f"{top1:.2f}%"] for name, epochs, flops, top1 in PAPER],
    )
    parts: list[str | Drawing] = [drawing, _paper(), ours, "<h2>The paper's Table 6</h2>", paper]
    return Told(_answer(groups), parts, {"models": numbers, "paper": PAPER})


def _paper() -> Drawing:
    """Plot the paper's numbers as in its Figure 5."""
    lines: dict[str, dict[float, tuple[float, str]]] = {"ViT": {}, "hybrid": {}, "ResNet": {}}
    for name, epochs, exa, top1 in PAPER:
        family = "ViT" if name.startswith("ViT") else "hybrid" if "+" in name else "ResNet"
        lines[family][math.log10(exa)] = top1 / 100, f"{name}, {epochs} epochs"
    drawn = {family: [(x, score) for x, (score, _) in sorted(line.items())] for family, line in lines.items()}
    said = {
        family: [("", f"{name}: {score:.2%}") for _, (score, name) in sorted(line.items())] for family, line in lines.items()
    }
    marks = {math.log10(exa): f"{exa:,}" for exa in (50, 100, 200, 500, 1000, 2000, 4000)}
    upward = "ImageNet accuracy, fine-tuned"
    return chart("The paper: Table 6", upward, "pre-training exaFLOPs", drawn, percent=True, captions=said, marks=marks)


def _answer(groups: dict[tuple[Any, ...], list[Row]]) -> str:
    said = []
    for size in dict.fromkeys(size for _, size in groups):
        own = {family: groups[family, size] for family in ("ViT", "hybrid", "ResNet") if (family, size) in groups}
        finished = {family: found for family, found in own.items() if middle(found) == middle(found)}
        if len(finished) < 2:
            said.append(f"too few of the {size} models finished")
            continue
        first, second, *_ = sorted(finished, key=lambda family: -middle(finished[family]))
        apart = gap(finished[first], finished[second])
        how = "significantly" if apart is not None and apart.clear else "not significantly"
        said.append(
            f"of the {size} models the {first} ({middle(finished[first]):.1%}) is {how} better than the {second} "
            f"({middle(finished[second]):.1%})"
        )
    return f"At equal compute, {'; '.join(said)}."


EXPERIMENT = Experiment(
    name="compute-scale",
    title="Figure 5: accuracy against compute",
    paper="Pre-trained on JFT, ViTs need two to four times less compute than ResNets for the same accuracy, hybrids slightly "
    "outperform ViTs at small budgets but not at large ones, and ViTs do not saturate within the range tried (Dosovitskiy et "
    "al. 2021, 4.4, Figure 5, for ImageNet and for the mean of five datasets; below are the numbers of Table 6 for ImageNet).",
    scaled="Three sizes of a ViT, 0.05 to 0.7 million parameters, each with a hybrid and a ResNet of about as many "
    "multiply-adds, trained from scratch for the same number of steps on small images; compute is six FLOPs per multiply-add "
    "and image. ViT and hybrid with Muon, the ResNet with SGD, each at one learning rate for all sizes.",
    limits="The paper's regime is practically unlimited data; here a few thousand images are seen several times, which favours "
    "the inductive bias of convolutions. Compute spans a factor of ten, the paper's one of eighty. Multiply-adds are not "
    "seconds: small convolutions take longer for as many.",
    tell=tell,
    trials=trials,
)
