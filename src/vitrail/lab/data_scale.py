"""``vitrail lab data-scale``: Figures 3 and 4, families of equal compute on growing amounts of data. Where do lines cross?"""

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
from vitrail.report.page import table, text

FIRST, REACH = 500, 64  # the least amount, or that share of all where there are few
AMOUNTS, LEAST = 4, 30
Line = dict[float, list[Row]]


def amounts(asked: Asked) -> list[int]:
    """From little to all that there is, each as many times the one before."""
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
        ("family", "#parameters", "#MACs a picture"),
        [
            [name, f"{found.parameters:,}", f"{found.macs / 1e6:.2f} M"]
            for name, line in lines.items()
            for found in line[counts[0]][:1]
        ],
    )
    crossed = {f"{ours} and {theirs}": crossings(lines[ours], lines[theirs]) for ours, theirs in PAIRS}
    drawing = over("Accuracy over the amount of data", "pictures to learn from", lines, lambda count: f"{count:,.0f}")
    numbers = {family: {str(count): plain(found) for count, found in line.items()} for family, line in lines.items()}
    columns = ("pictures", "#times each is seen", *(f"#{family}" for family in lines), "#ViT ahead of ResNet by")
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
    title, upward = "The paper: Table 5", "accuracy on ImageNet, fine-tuned"
    return chart(title, upward, "pictures of pre-training", lines, percent=True, captions=said, marks=marks)


def _unseen(rows: Sequence[Row], counts: Sequence[float]) -> Iterator[str]:
    """A training may be too short to see every picture once: what is beyond is no data to it."""
    drawn = rows[0].steps * rows[0].batch
    if beyond := [f"{count:,}" for count in counts if count > drawn]:
        words = f"Each training draws {drawn:,} pictures in all, so of {one_of(beyond)} it has not seen every one, even once: "
        yield f'<p class="bad">{words}more --minutes tell these amounts apart.</p>'


SETS = {1_300_000: "1.3 M", 14_000_000: "14 M", 303_000_000: "303 M"}  # ImageNet, ImageNet-21k and JFT-300M
PAPER = {  # Table 5, of Figure 3
    "ViT-B/16": {1_300_000: 0.7791, 14_000_000: 0.8397, 303_000_000: 0.8415},
    "ViT-L/16": {1_300_000: 0.7653, 14_000_000: 0.8515, 303_000_000: 0.8712},
}
PAIRS = (("ViT", "ResNet"), ("hybrid", "ResNet"), ("ViT", "hybrid"))


def crossings(ours: Line, theirs: Line) -> list[tuple[float, float]]:
    """Between which amounts it changes who is ahead in the mean."""
    ahead = {count: middle(ours[count]) - middle(theirs[count]) for count in sorted(ours) if count in theirs}
    known = [(count, value) for count, value in ahead.items() if value == value and value != 0]
    return [(low, high) for (low, before), (high, behind) in pairwise(known) if before * behind < 0]


def _chance(ours: Line, theirs: Line, *counts: float) -> str:
    """Said unless one is clearly ahead before, and clearly behind after."""
    apart = [gap(ours[count], theirs[count]) for count in counts]
    return "" if all(found is not None and found.clear for found in apart) else ", which may be chance"


def _grown(more: Gap | None) -> str:
    """What the paper's claim is about: not who is ahead, but who gains more from data."""
    return "" if more is None else f"; a change of {more.words}, {'clear' if more.clear else 'not clear'}"


def _answer(lines: dict[str, Line], crossed: dict[str, list[tuple[float, float]]]) -> str:
    said = []
    for ours, theirs in PAIRS[:2]:
        found = crossed[f"{ours} and {theirs}"]
        most, least = max(lines[ours]), min(lines[ours])
        ends = [gap(lines[ours][count], lines[theirs][count]) for count in (least, most)]
        if None in ends:
            said.append(f"of {ours} and {theirs} too few trainings were finished")
            continue
        more = gain(*((lines[ours][count], lines[theirs][count]) for count in (least, most)))
        few, many = (apart.words + (", clear" if apart.clear else ", not clear") for apart in ends if apart is not None)
        where = ", and ".join(
            f"between {low:,} and {high:,} pictures{_chance(lines[ours], lines[theirs], low, high)}" for low, high in found
        )
        cross = f"cross {where}" if found else "do not cross"
        said.append(
            f"the lines of {ours} and {theirs} {cross} ({ours} against {theirs}: {few}, with {least:,} pictures, and "
            f"{many}, with {most:,}{_grown(more)})"
        )
    return sentence(said)


EXPERIMENT = Experiment(
    name="data-scale",
    title="Figures 3 and 4: how much data a ViT needs",
    paper="Pre-trained on ImageNet (1.3 million pictures), the large ViTs are behind the base ones and BiT's ResNets ahead "
    "of both; on ImageNet-21k (14 million) they are similar, and on JFT (303 million) the larger ViTs are ahead "
    "(Figure 3; L/16 has 76.53 %, 85.15 % and 87.12 % on ImageNet after each, B/16 77.91 %, 83.97 % and 84.15 %, "
    "Table 5). On random parts of JFT of 9, 30 and 90 million ResNets are ahead with the smaller ones and level off "
    "sooner (Figure 4; Dosovitskiy et al. 2021, 4.3).",
    scaled="A ViT of 0.2 million weights, and a hybrid and a ResNet of as many multiply-adds, from nothing, on four parts "
    "of one set, each as many times the one before. All see as many pictures in all, so the fewer there are the more often "
    "each; the weights are those that are best on validation. ViT and hybrid with Muon, the ResNet with SGD, at "
    "learning rates that were tuned neither for each amount nor for the hybrid. The three seeds share the pictures of an "
    "amount, so ± leaves out which pictures they are.",
    limits="The paper's smallest set has 1.3 million pictures, and its models are hundreds of times as large: where lines "
    "cross here, if they do, says nothing of where the paper's cross. Equal multiply-adds are not equal parameters (the "
    "models are below the table), and in a short training whoever learns fastest is ahead with any amount: only a clear "
    "change between little data and much speaks of data.",
    tell=tell,
    trials=trials,
)
