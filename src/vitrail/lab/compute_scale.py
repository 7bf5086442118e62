"""``vitrail lab compute-scale``: Figure 5, accuracy against training compute for several sizes of the three families."""

import math
from collections.abc import Sequence
from typing import Any

from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult, group_by
from vitrail.lab.pretraining_compute import TABLE
from vitrail.lab.small_recipe import FAMILY_OPTIM, matched_families, small_recipe, small_vit
from vitrail.lab.summaries import best_two, line_plot, mean_score, score_cell, scores_json
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.plot.canvas import Figure
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.html import html_table

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
PAPER = [(row.paper, row.epochs, row.exaflops, top1) for row, top1 in zip(TABLE, TOP1, strict=True)]


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    sizes = {"small": SIZES["small"]} if options.quick else SIZES
    return [
        TrainingJob({"family": family, "size": size, "seed": seed}, small_recipe(options, model, seed, FAMILY_OPTIM[family]))
        for seed in options.seeds
        for size, changes in sizes.items()
        for family, model in matched_families(small_vit(options, **changes)).items()
    ]


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    groups = group_by(rows, "family", "size")
    lines: dict[str, dict[float, list[JobResult]]] = {}
    cells, numbers = [], []
    for (family, size), group in groups.items():
        first = group[0]
        lines.setdefault(family, {})[first.flops / 1e12] = group
        cells.append(
            [
                escape(family),
                escape(size),
                f"{first.parameters:,}",
                f"{first.macs / 1e6:.2f} M",
                f"{first.flops / 1e12:.3g}",
                score_cell(group),
            ]
        )
        numbers.append(
            scores_json(group, family=family, size=size, flops=first.flops, parameters=first.parameters, macs=first.macs)
        )
    figure = line_plot("Test accuracy by training compute", "training teraFLOPs", lines, lambda flops: f"{flops:.2g}")
    ours = html_table(("family", "size", "#parameters", "#MACs per image", "#teraFLOPs", "#test"), cells)
    paper = html_table(
        ("pre-trained on JFT", "#epochs", "#exaFLOPs", "#ImageNet"),
        [[escape(name), str(epochs), f"{flops:,}", f"{top1:.2f}%"] for name, epochs, flops, top1 in PAPER],
    )
    parts: list[str | Figure] = [figure, _paper_figure(), ours, "<h2>The paper's Table 6</h2>", paper]
    return ExperimentResult(_summary(groups), parts, {"models": numbers, "paper": PAPER})


def _paper_figure() -> Figure:
    """Plot the paper's numbers as in its Figure 5."""
    lines: dict[str, dict[float, tuple[float, str]]] = {"ViT": {}, "hybrid": {}, "ResNet": {}}
    for name, epochs, exa, top1 in PAPER:
        family = "ViT" if name.startswith("ViT") else "hybrid" if "+" in name else "ResNet"
        lines[family][math.log10(exa)] = top1 / 100, f"{name}, {epochs} epochs"
    points = {family: [(x, score) for x, (score, _) in sorted(line.items())] for family, line in lines.items()}
    captions = {
        family: [("", f"{name}: {score:.2%}") for _, (score, name) in sorted(line.items())] for family, line in lines.items()
    }
    x_ticks = {math.log10(exa): f"{exa:,}" for exa in (50, 100, 200, 500, 1000, 2000, 4000)}
    y_label = "ImageNet accuracy, fine-tuned"
    return line_chart(
        "The paper: Table 6", y_label, "pre-training exaFLOPs", points, percent=True, captions=captions, x_ticks=x_ticks
    )


def _summary(groups: dict[tuple[Any, ...], list[JobResult]]) -> str:
    clauses = []
    for size in dict.fromkeys(size for _, size in groups):
        by_family = {family: groups[family, size] for family in ("ViT", "hybrid", "ResNet") if (family, size) in groups}
        finished = {family: group for family, group in by_family.items() if mean_score(group) == mean_score(group)}
        if len(finished) < 2:
            clauses.append(f"too few of the {size} models finished")
            continue
        first, second, adverb = best_two(finished)
        clauses.append(
            f"of the {size} models the {first} ({mean_score(finished[first]):.1%}) is {adverb} better than the {second} "
            f"({mean_score(finished[second]):.1%})"
        )
    return f"At equal compute, {'; '.join(clauses)}."


EXPERIMENT = Experiment(
    name="compute-scale",
    title="Figure 5: accuracy against compute",
    paper="Pre-trained on JFT, ViTs need two to four times less compute than ResNets for the same accuracy, hybrids slightly "
    "outperform ViTs at small budgets but not at large ones, and ViTs do not saturate within the range tried (Dosovitskiy et "
    "al. 2021, 4.4, Figure 5, for ImageNet and for the mean of five datasets; below are the numbers of Table 6 for ImageNet).",
    scaled="Three sizes of a ViT, 0.05 to 0.7 million parameters, each with a hybrid and a ResNet of about as many "
    "multiply-adds, trained from scratch for the same number of steps on small images; compute is six FLOPs per multiply-add "
    "and image. ViT and hybrid with Muon, the ResNet with SGD, each at one learning rate for all sizes.",
    limits="The paper's regime is practically unlimited data; here a few thousand images are used for several epochs, "
    "which favours the inductive bias of convolutions. Compute spans a factor of ten, the paper's one of eighty. "
    "Multiply-adds are not seconds: small convolutions take longer for as many.",
    build_result=build_result,
    jobs=jobs,
)
