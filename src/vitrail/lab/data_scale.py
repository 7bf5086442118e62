"""``vitrail lab data-scale``: Figures 3 and 4, families of equal compute on growing training sets. Where do they cross?"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from vitrail.lab.base import BEST, data_of, families, recipe, seen, vit
from vitrail.lab.experiment import Asked, Experiment, Told, by
from vitrail.lab.show import Gap, cell, gain, gap, middle, one_of, over, plain, sentence
from vitrail.lab.trial import Row, Trial
from vitrail.report.chart import chart
from vitrail.report.drawing import Drawing
from vitrail.report.markup import text
from vitrail.report.page import table

FIRST, REACH = 500, 64  # images of the smallest subset, or all divided by this in a small dataset
AMOUNTS, LEAST = 4, 30
Line = dict[float, list[Row]]


def amounts(asked: Asked) -> list[int]:
    """Return training set sizes up to the whole dataset, geometrically spaced."""
    count = seen(data_of(asked)).count
    first = min(max(min(FIRST, count // REACH), LEAST), count)
    return sorted({round(amount) for amount in np.geomspace(first, count, 2 if asked.quick else AMOUNTS)})


def trials(asked: Asked) -> list[Trial]:
    models = families(vit(asked))
    held = None if "held=" in data_of(asked) or not asked.data.startswith("panes") else max(seen(asked.data).count // 5, 1)
    return [
        Trial(
            {"family": family, "count": count, "seed": seed},
            recipe(
                asked, model, seed, BEST[family], looks=4, data=data_of(asked, count=count, **({"held": held} if held else {}))
            ),
        )
        for seed in asked.seeds
        for count in amounts(asked)
        for family, model in models.items()
    ]


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    lines: dict[str, Line] = {
        family: {count: found for (count,), found in by(own, "count").items()} for (family,), own in by(rows, "family").items()
    }
    counts = sorted(next(iter(lines.values())))
    cells = []
    for count in counts:
        apart = gap(lines["ViT"][count], lines["ResNet"][count])
        ahead = "" if apart is None else text(apart.words)
        often = rows[0].steps * rows[0].batch / count
        cells.append(
            [
                f"{count:,}",
                f"{often:,.0f}" if often >= 10 else f"{often:.1f}",
                *(cell(line[count]) for line in lines.values()),
                ahead,
            ]
        )
    sizes = table(
        ("family", "#parameters", "#MACs per image"),
        [
            [name, f"{found.parameters:,}", f"{found.macs / 1e6:.2f} M"]
            for name, line in lines.items()
            for found in line[counts[0]][:1]
        ],
    )
    crossed = {f"{ours} and {theirs}": crossings(lines[ours], lines[theirs]) for ours, theirs in PAIRS}
    drawing = over("Test accuracy by training set size", "training images", lines, lambda count: f"{count:,.0f}")
    numbers = {family: {str(count): plain(found) for count, found in line.items()} for family, line in lines.items()}
    columns = ("training images", "#epochs", *(f"#{family}" for family in lines), "#ViT minus ResNet")
    parts: list[str | Drawing] = [
        drawing,
        _paper(),
        table(columns, cells),
        *_unseen(rows, counts),
        "<h2>The models</h2>",
        sizes,
    ]
    return Told(_answer(lines, crossed), parts, {"families": numbers, "crossings": crossed, "paper": PAPER})


def _paper() -> Drawing:
    lines = {name: [(math.log10(count), score) for count, score in line.items()] for name, line in PAPER.items()}
    said = {
        name: [("", f"{name}, {SETS[count]}: {score:.2%}") for count, score in line.items()] for name, line in PAPER.items()
    }
    marks = {math.log10(count): words for count, words in SETS.items()}
    title, upward = "The paper: Table 5", "ImageNet accuracy, fine-tuned"
    return chart(title, upward, "pre-training images", lines, percent=True, captions=said, marks=marks)


def _unseen(rows: Sequence[Row], counts: Sequence[float]) -> Iterator[str]:
    """Warn about sizes that exceed the images drawn in training: a run too short sees only part of them."""
    drawn = rows[0].steps * rows[0].batch
    if beyond := [f"{count:,}" for count in counts if count > drawn]:
        words = f"Each run draws {drawn:,} images, less than one epoch of {one_of(beyond)}: "
        yield f'<p class="bad">{words}comparing these sizes needs more --minutes.</p>'


SETS = {1_300_000: "1.3 M", 14_000_000: "14 M", 303_000_000: "303 M"}  # ImageNet, ImageNet-21k and JFT-300M
PAPER = {  # Table 5, plotted in Figure 3
    "ViT-B/16": {1_300_000: 0.7791, 14_000_000: 0.8397, 303_000_000: 0.8415},
    "ViT-L/16": {1_300_000: 0.7653, 14_000_000: 0.8515, 303_000_000: 0.8712},
}
PAIRS = (("ViT", "ResNet"), ("hybrid", "ResNet"), ("ViT", "hybrid"))


def crossings(ours: Line, theirs: Line) -> list[tuple[float, float]]:
    """Return the pairs of sizes between which the sign of the mean difference changes."""
    ahead = {count: middle(ours[count]) - middle(theirs[count]) for count in sorted(ours) if count in theirs}
    known = [(count, value) for count, value in ahead.items() if value == value and value != 0]
    return [(low, high) for (low, before), (high, behind) in pairwise(known) if before * behind < 0]


def _chance(ours: Line, theirs: Line, *counts: float) -> str:
    """Return a caveat unless the differences at these sizes are significant."""
    apart = [gap(ours[count], theirs[count]) for count in counts]
    return "" if all(found is not None and found.clear for found in apart) else ", which may be chance"


def _grown(more: Gap | None) -> str:
    """Describe the change of the difference with data, which is what the paper's claim is about."""
    return "" if more is None else f"; a change of {more.words}, {'significant' if more.clear else 'not significant'}"


def _answer(lines: dict[str, Line], crossed: dict[str, list[tuple[float, float]]]) -> str:
    said = []
    for ours, theirs in PAIRS[:2]:
        found = crossed[f"{ours} and {theirs}"]
        most, least = max(lines[ours]), min(lines[ours])
        ends = [gap(lines[ours][count], lines[theirs][count]) for count in (least, most)]
        if None in ends:
            said.append(f"of {ours} and {theirs} too few runs finished")
            continue
        more = gain(*((lines[ours][count], lines[theirs][count]) for count in (least, most)))
        few, many = (
            apart.words + (", significant" if apart.clear else ", not significant") for apart in ends if apart is not None
        )
        where = ", and ".join(
            f"between {low:,} and {high:,} images{_chance(lines[ours], lines[theirs], low, high)}" for low, high in found
        )
        cross = f"cross {where}" if found else "do not cross"
        said.append(
            f"the curves of {ours} and {theirs} {cross} ({ours} minus {theirs}: {few}, with {least:,} images, and "
            f"{many}, with {most:,}{_grown(more)})"
        )
    return sentence(said)


EXPERIMENT = Experiment(
    name="data-scale",
    title="Figures 3 and 4: how much data a ViT needs",
    paper="Pre-trained on ImageNet (1.3 million images), the large ViTs are worse than the base ones and BiT's ResNets better "
    "than both; on ImageNet-21k (14 million) they are similar, and on JFT (303 million) the larger ViTs are better "
    "(Figure 3; L/16 has 76.53 %, 85.15 % and 87.12 % on ImageNet after each, B/16 77.91 %, 83.97 % and 84.15 %, "
    "Table 5). On random subsets of JFT of 9, 30 and 90 million images ResNets are better on the smaller ones and saturate "
    "sooner (Figure 4; Dosovitskiy et al. 2021, 4.3).",
    scaled="A ViT with 0.2 million parameters, and a hybrid and a ResNet of as many multiply-adds, trained from scratch on "
    "four subsets of one dataset, geometrically spaced. All runs draw the same number of images, so smaller subsets are seen "
    "for more epochs; the weights are the best on validation. ViT and hybrid with Muon, the ResNet with SGD, at learning rates "
    "tuned neither for each size nor for the hybrid. The three seeds share the images of a subset, so ± does not cover the "
    "choice of images.",
    limits="The paper's smallest dataset has 1.3 million images, and its models are hundreds of times larger: where curves "
    "cross here, if they do, says nothing about where the paper's cross. Equal multiply-adds are not equal parameters (see the "
    "models below the table), and in a short run the model that learns fastest wins at any size: only a significant change "
    "of the difference between small and large subsets is an effect of data.",
    tell=tell,
    trials=trials,
)
