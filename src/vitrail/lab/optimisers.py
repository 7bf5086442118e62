"""``vitrail lab optimisers``: Table 7, Adam against SGD, here for ViT and ResNet, with Muon, over learning rates."""

from collections.abc import Sequence
from dataclasses import replace

from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult
from vitrail.lab.small_recipe import coarse_patch, matched_resnet, small_recipe, small_vit
from vitrail.lab.summaries import LearningRates, best_two, by_learning_rate, mean_score, score_cell
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.models.config import ModelConfig
from vitrail.plot.markup import escape
from vitrail.recipes.recipe import Optim
from vitrail.report.html import html_table

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
    rates = by_learning_rate(rows, "family", "optimiser")
    cells = [
        [escape(name), *(f'<span class="soft">{lr:g}:</span> {score_cell(group)}' for lr, group in line.items()),
         rates.best_cell(name)]
        for name, line in rates.results.items()
    ]  # fmt: skip
    paper = html_table(
        ("fine-tuned on", "#R50x1, Adam", "#R50x1, SGD", "#R152x2, Adam", "#R152x2, SGD"),
        [[name, *(f"{value:.2f}%" for value in values)] for name, values in PAPER.items()],
    )
    levels = ("low", "middle", "high") if len(cells[0]) == 5 else ("middle",)
    columns = ("model, optimiser", *(f"#{level} lr" for level in levels), "#lr selected on validation")
    return ExperimentResult(
        _summary(rates),
        [rates.figure, html_table(columns, cells), "<h2>The paper's Table 7</h2>", paper],
        {"arms": rates.numbers, "best": rates.best},
    )


def _summary(rates: LearningRates) -> str:
    clauses = []
    for family in ("ViT", "ResNet"):
        by_optimiser = {
            kind: rates.results[name][lr]
            for kind in RATES
            if (name := f"{family}, {kind}") in rates.results and (lr := rates.best[name]) is not None
        }
        if len(by_optimiser) < 2:
            clauses.append(f"for the {family} too few runs finished")
            continue
        first, second, adverb = best_two(by_optimiser)
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
