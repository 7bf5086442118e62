"""``vitrail lab data-scale``: Figures 3 and 4, families of equal compute on growing training sets. Where do they cross?"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult, group_by
from vitrail.lab.small_recipe import FAMILY_OPTIM, dataset_name, dataset_shape, matched_families, small_recipe, small_vit
from vitrail.lab.summaries import (
    SeedDifference,
    difference_cell,
    difference_of_differences,
    join_clauses,
    join_names,
    line_plot,
    mean_score,
    paired_difference,
    score_cell,
    scores_json,
)
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.plot.canvas import Figure
from vitrail.plot.line_chart import line_chart
from vitrail.report.html import html_table

MIN_SUBSET, MAX_RATIO = 500, 64  # images of the smallest subset, or all divided by this in a small dataset
NUM_SIZES, MIN_IMAGES = 4, 30
ResultsBySize = dict[float, list[JobResult]]


def subset_sizes(options: ExperimentOptions) -> list[int]:
    """Return training set sizes up to the whole dataset, geometrically spaced."""
    count = dataset_shape(dataset_name(options)).num_train
    first = min(max(min(MIN_SUBSET, count // MAX_RATIO), MIN_IMAGES), count)
    return sorted({round(amount) for amount in np.geomspace(first, count, 2 if options.quick else NUM_SIZES)})


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    models = matched_families(small_vit(options))
    heldout_size = (
        None
        if "heldout_size=" in dataset_name(options) or not options.data.startswith("panes")
        else max(dataset_shape(options.data).num_train // 5, 1)
    )
    return [
        TrainingJob(
            {"family": family, "count": count, "seed": seed},
            small_recipe(
                options,
                model,
                seed,
                FAMILY_OPTIM[family],
                evaluations=4,
                data=dataset_name(options, train_size=count, **({"heldout_size": heldout_size} if heldout_size else {})),
            ),
        )
        for seed in options.seeds
        for count in subset_sizes(options)
        for family, model in models.items()
    ]


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    lines: dict[str, ResultsBySize] = {
        family: {count: group for (count,), group in group_by(own, "count").items()}
        for (family,), own in group_by(rows, "family").items()
    }
    counts = sorted(next(iter(lines.values())))
    cells = []
    for count in counts:
        epochs = rows[0].steps * rows[0].batch_size / count
        scores = [score_cell(line[count]) for line in lines.values()]
        ahead = difference_cell(lines["ViT"][count], lines["ResNet"][count])
        cells.append([f"{count:,}", f"{epochs:,.0f}" if epochs >= 10 else f"{epochs:.1f}", *scores, ahead])
    sizes = html_table(
        ("family", "#parameters", "#MACs per image"),
        [
            [name, f"{group.parameters:,}", f"{group.macs / 1e6:.2f} M"]
            for name, line in lines.items()
            for group in line[counts[0]][:1]
        ],
    )
    crossing_points = {f"{ours} and {theirs}": crossings(lines[ours], lines[theirs]) for ours, theirs in PAIRS}
    figure = line_plot("Test accuracy by training set size", "training images", lines, lambda count: f"{count:,.0f}")
    numbers = {family: {str(count): scores_json(group) for count, group in line.items()} for family, line in lines.items()}
    columns = ("training images", "#epochs", *(f"#{family}" for family in lines), "#ViT minus ResNet")
    parts: list[str | Figure] = [
        figure,
        _paper_figure(),
        html_table(columns, cells),
        *_epoch_warning(rows, counts),
        "<h2>The models</h2>",
        sizes,
    ]
    return ExperimentResult(
        _summary(lines, crossing_points), parts, {"families": numbers, "crossings": crossing_points, "paper": PAPER}
    )


def _paper_figure() -> Figure:
    lines = {name: [(math.log10(count), score) for count, score in line.items()] for name, line in PAPER.items()}
    captions = {
        name: [("", f"{name}, {DATASET_SIZES[count]}: {score:.2%}") for count, score in line.items()]
        for name, line in PAPER.items()
    }
    x_ticks = {math.log10(count): label for count, label in DATASET_SIZES.items()}
    title, y_label = "The paper: Table 5", "ImageNet accuracy, fine-tuned"
    return line_chart(title, y_label, "pre-training images", lines, percent=True, captions=captions, x_ticks=x_ticks)


def _epoch_warning(rows: Sequence[JobResult], counts: Sequence[float]) -> Iterator[str]:
    """Warn about sizes that exceed the images drawn in training: a run too short sees only part of them."""
    drawn = rows[0].steps * rows[0].batch_size
    if unseen_sizes := [f"{count:,}" for count in counts if count > drawn]:
        message = f"Each run draws {drawn:,} images, less than one epoch of {join_names(unseen_sizes)}: "
        yield f'<p class="bad">{message}comparing these sizes needs more --minutes.</p>'


DATASET_SIZES = {1_300_000: "1.3 M", 14_000_000: "14 M", 303_000_000: "303 M"}  # ImageNet, ImageNet-21k and JFT-300M
PAPER = {  # Table 5, plotted in Figure 3
    "ViT-B/16": {1_300_000: 0.7791, 14_000_000: 0.8397, 303_000_000: 0.8415},
    "ViT-L/16": {1_300_000: 0.7653, 14_000_000: 0.8515, 303_000_000: 0.8712},
}
PAIRS = (("ViT", "ResNet"), ("hybrid", "ResNet"), ("ViT", "hybrid"))


def crossings(ours: ResultsBySize, theirs: ResultsBySize) -> list[tuple[float, float]]:
    """Return the pairs of sizes between which the sign of the mean difference changes."""
    differences = {count: mean_score(ours[count]) - mean_score(theirs[count]) for count in sorted(ours) if count in theirs}
    nonzero = [(count, value) for count, value in differences.items() if value == value and value != 0]
    return [(low, high) for (low, before), (high, after) in pairwise(nonzero) if before * after < 0]


def _chance_note(ours: ResultsBySize, theirs: ResultsBySize, *counts: float) -> str:
    """Return a caveat unless the differences at these sizes are significant."""
    differences = [paired_difference(ours[count], theirs[count]) for count in counts]
    significant = all(difference is not None and difference.significant for difference in differences)
    return "" if significant else ", which may be chance"


def _change_note(change: SeedDifference | None) -> str:
    """Describe the change of the difference with data, which is what the paper's claim is about."""
    if change is None:
        return ""
    return f"; a change of {change.text}, {'significant' if change.significant else 'not significant'}"


def _summary(lines: dict[str, ResultsBySize], crossing_points: dict[str, list[tuple[float, float]]]) -> str:
    clauses = []
    for ours, theirs in PAIRS[:2]:
        crossed_at = crossing_points[f"{ours} and {theirs}"]
        largest, smallest = max(lines[ours]), min(lines[ours])
        ends = [paired_difference(lines[ours][count], lines[theirs][count]) for count in (smallest, largest)]
        if None in ends:
            clauses.append(f"of {ours} and {theirs} too few runs finished")
            continue
        change = difference_of_differences(*((lines[ours][count], lines[theirs][count]) for count in (smallest, largest)))
        at_smallest, at_largest = (
            difference.text + (", significant" if difference.significant else ", not significant")
            for difference in ends
            if difference is not None
        )
        where = ", and ".join(
            f"between {low:,} and {high:,} images{_chance_note(lines[ours], lines[theirs], low, high)}"
            for low, high in crossed_at
        )
        cross = f"cross {where}" if crossed_at else "do not cross"
        clauses.append(
            f"the curves of {ours} and {theirs} {cross} ({ours} minus {theirs}: {at_smallest}, with {smallest:,} images, and "
            f"{at_largest}, with {largest:,}{_change_note(change)})"
        )
    return join_clauses(clauses)


EXPERIMENT = Experiment(
    name="data-scale",
    title="Figures 3 and 4: how much data a ViT needs",
    paper="Pre-trained on ImageNet (1.3 million images), the large ViTs are worse than the base ones and BiT's ResNets better "
    "than both; on ImageNet-21k (14 million) they are similar, and on JFT (303 million) the larger ViTs are better "
    "(Figure 3; L/16 has 76.53 %, 85.15 % and 87.12 % on ImageNet after each, B/16 77.91 %, 83.97 % and 84.15 %, "
    "Table 5). On random subsets of JFT of 9, 30 and 90 million images ResNets are better on the smaller ones and saturate "
    "sooner (Figure 4; Dosovitskiy et al. 2021, 4.3).",
    scaled="A ViT with 0.2 million parameters, and a hybrid and a ResNet of as many multiply-adds, trained from scratch on "
    "four subsets of one dataset, geometrically spaced. All runs draw the same number of images, so smaller subsets are used "
    "for more epochs; the weights are the best on validation. ViT and hybrid with Muon, the ResNet with SGD, at learning rates "
    "tuned neither for each size nor for the hybrid. The three seeds share the images of a subset, so ± does not cover the "
    "choice of images.",
    limits="The paper's smallest dataset has 1.3 million images, and its models are hundreds of times larger: where curves "
    "cross here, if they do, says nothing about where the paper's cross. Equal multiply-adds are not equal parameters (see the "
    "models below the table), and in a short run the model that learns fastest wins at any size: only a significant change "
    "of the difference between small and large subsets is an effect of data.",
    build_result=build_result,
    jobs=jobs,
)
