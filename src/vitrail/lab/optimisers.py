"""``vitrail lab optimisers``: Table 7, Adam against SGD, here for ViT and ResNet, with Muon, over learning rates."""

from collections.abc import Sequence
from dataclasses import replace

from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult, group_by
from vitrail.lab.small_recipe import coarse_patch, matched_resnet, small_recipe, small_vit
from vitrail.lab.summaries import line_plot, mean_score, paired_difference, score_cell, scores_json, select_on_validation
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.models.config import ModelConfig
from vitrail.plot.markup import escape
from vitrail.report.html import html_table
from vitrail.training.recipe import Optim

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


def optim_for(kind: str, lr: float) -> Optim:
    if kind == "SGD":
        return Optim(name="sgd", lr=lr, weight_decay=1e-4, grad_clip=1.0)
    adamw = Optim(lr=lr, weight_decay=0.1, grad_clip=1.0)
    return adamw if kind == "AdamW" else replace(adamw, name="muon", lr=lr / 5, muon_lr=lr)


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    reference = small_vit(options, patch=coarse_patch(options))
    models: dict[str, ModelConfig] = {"ViT": reference, "ResNet": matched_resnet(reference)}
    return [
        TrainingJob(
            {"family": family, "optimiser": kind, "lr": lr, "seed": seed},
            small_recipe(options, models[family], seed, optim_for(kind, lr)),
        )
        for seed in options.seeds
        for family, kind in ARMS
        for lr in (RATES[kind][1:2] if options.quick else RATES[kind])
    ]


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    lines = {
        f"{family}, {kind}": {lr: group for (lr,), group in group_by(own, "lr").items()}
        for (family, kind), own in group_by(rows, "family", "optimiser").items()
    }
    best_lr = {name: select_on_validation(line) for name, line in lines.items()}
    cells = [
        [escape(name), *(f'<span class="soft">{rate:g}:</span> {score_cell(group)}' for rate, group in line.items()),
         "" if best_lr[name] is None else f"{best_lr[name]:g}"]
        for name, line in lines.items()
    ]  # fmt: skip
    figure = line_plot("Test accuracy by learning rate", "learning rate", lines, lambda lr: f"{lr:g}")
    paper = html_table(
        ("fine-tuned on", "#R50x1, Adam", "#R50x1, SGD", "#R152x2, Adam", "#R152x2, SGD"),
        [[name, *(f"{value:.2f}%" for value in values)] for name, values in PAPER.items()],
    )
    numbers = {name: {f"{lr:g}": scores_json(group) for lr, group in line.items()} for name, line in lines.items()}
    levels = ("low", "middle", "high") if len(cells[0]) == 5 else ("middle",)
    columns = ("model, optimiser", *(f"#{level} lr" for level in levels), "#lr selected on validation")
    return ExperimentResult(
        _summary(lines, best_lr),
        [figure, html_table(columns, cells), "<h2>The paper's Table 7</h2>", paper],
        {"arms": numbers, "best": best_lr},
    )


def _summary(lines: dict[str, dict[float, list[JobResult]]], best_lr: dict[str, float | None]) -> str:
    clauses = []
    for family in ("ViT", "ResNet"):
        by_optimiser = {
            kind: lines[name][lr]
            for kind in RATES
            if (name := f"{family}, {kind}") in lines and (lr := best_lr[name]) is not None
        }
        if len(by_optimiser) < 2:
            clauses.append(f"for the {family} too few runs finished")
            continue
        first, second, *_ = sorted(by_optimiser, key=lambda kind: -mean_score(by_optimiser[kind]))
        difference = paired_difference(by_optimiser[first], by_optimiser[second])
        adverb = "significantly" if difference is not None and difference.significant else "not significantly"
        clauses.append(
            f"for the {family}, {first} reaches {mean_score(by_optimiser[first]):.1%}, {adverb} better than "
            f"{second} ({mean_score(by_optimiser[second]):.1%})"
        )
    joined = "; ".join(clauses)
    return f"At the best learning rate of each, {joined}."


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
    build_result=build_result,
    jobs=jobs,
)
