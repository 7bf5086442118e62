"""``vitrail lab inside``: what is inside a model trained here and a given checkpoint, as Figures 6, 7, 10 and 11 draw it.

Filters of the first layer, how alike places are, how far heads look by depth, and attention rolled out over pictures.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.sources.open import pictures
from vitrail.explain.attention import checked
from vitrail.lab.base import MUON, STEPS, hybrid, recipe, vit
from vitrail.lab.experiment import Asked, Experiment, Told, shown
from vitrail.lab.look import Look, again, looked
from vitrail.lab.trial import Row, Trial
from vitrail.models.build import Model
from vitrail.report.chart import chart
from vitrail.report.drawing import Drawing, Shape, Shown, Words
from vitrail.report.heat import filter_sheet, tiles
from vitrail.report.page import table, text
from vitrail.train.data import opened
from vitrail.weights.load import load

VIT, HYBRID, SLOW, SHORT, GIVEN = "ViT", "hybrid", "ViT, half the learning rate", "ViT, half the steps", "the given checkpoint"
QUICK = 8  # pictures of a quick look at a given checkpoint
SIDE, GAP = 96, 8
CLEAR = 0.05  # of a cosine: less is the noise that positions begin as


def trials(asked: Asked) -> list[Trial]:
    """The paper's model, its hybrid, and other settings of its training as in Figure 10."""
    given(asked)  # what is wrong with it is said before anything is trained
    model = vit(asked, position="learned1d", pool="cls")
    slow = replace(MUON, lr=MUON.lr / 2, matrix_lr=MUON.matrix_lr / 2)
    made = {VIT: recipe(asked, model), HYBRID: recipe(asked, hybrid(model))}
    if not asked.quick:
        made |= {SLOW: recipe(asked, model, optim=slow), SHORT: recipe(asked, model, steps=STEPS // 2)}
    return [Trial({"arm": name, "seed": 0}, settings) for name, settings in made.items()]


def measure(run: Path, trial: Trial) -> dict[str, Any]:
    return looked(load(run / "best"), opened(trial.recipe).data).kept()


def given(asked: Asked) -> Model | None:
    return None if asked.weights is None else _loaded(asked.weights)


@cache
def _loaded(weights: str) -> Model:
    model = load(weights)
    checked(model)
    return model


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    looks = {str(row.of["arm"]): again(row.measured) for row in rows if row.failed is None}
    if (model := given(asked)) is not None:
        looks[GIVEN] = looked(model, pictures(asked.data), *([QUICK] if asked.quick else []))
    parts: list[str | Drawing] = [_table(rows, looks), "<h2>How far heads look (Figures 7, right, and 11)</h2>"]
    parts += [_far(name, look) for name, look in looks.items()]
    parts.append("<h2>How alike places are (Figures 7, middle, and 10)</h2>")
    parts += [tiles(look.positions, f"Positions: {name}") for name, look in looks.items() if look.positions is not None]
    parts.append("<h2>What the first layer looks for (Figure 7, left)</h2>")
    parts += [filter_sheet(look.filters, f"Principal components of the filters: {name}", columns=14, side=40)
              for name, look in looks.items() if name not in (SLOW, SHORT)]  # fmt: skip
    parts.append("<h2>What arrives at the output, by rollout (Figure 6)</h2>")
    parts += [_rolled(name, look) for name, look in looks.items() if name not in (SLOW, SHORT)]
    failed = {str(row.of["arm"]): row.failed for row in rows if row.failed is not None}
    numbers = {name: _numbers(look) for name, look in looks.items()}
    return Told(
        _answer(looks), parts, {"looks": numbers, "failed": failed, "weights": asked.weights and Path(asked.weights).name}
    )


def _answer(looks: dict[str, Look]) -> str:
    return " ".join(_said(name, look) for name, look in looks.items() if name in (VIT, HYBRID, GIVEN)) or "Nothing was trained."


def _said(name: str, look: Look) -> str:
    first, last = look.far[0], look.far[-1]
    words = (
        f"In {name if name == GIVEN else f'the {name}'} heads of the first layer look {first.min():.1f} to {first.max():.1f} "
        f"pixels far on a picture of {look.width}, and the mean over heads goes from {first.mean():.1f} in the first layer to "
        f"{last.mean():.1f} in the last"
    )
    if look.near is None:
        return f"{words}; it has no positions."
    near, other = look.near
    more = "more alike" if near - other > CLEAR else "no more alike"
    return f"{words}; neighbouring places are {more} ({_cosine(near)}) than others ({_cosine(other)})."


def _cosine(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # plus nothing: no minus before a zero


def _table(rows: Sequence[Row], looks: dict[str, Look]) -> str:
    scored = {str(row.of["arm"]): row for row in rows}
    columns = (
        "model",
        "#top-1",
        "#first layer, pixels",
        "#last layer, pixels",
        "#neighbours",
        "#other places",
        "#mirror image",
        "#order",
    )
    cells = []
    for name in dict.fromkeys([*scored, *looks]):
        row, look = scored.get(name), looks.get(name)
        if look is None:
            assert row is not None
            cells.append([text(name), f'<span class="bad">{text(row.failed)}</span>', *[""] * 6])
            continue
        score = shown([row.scores["test"]["top1"]]) if row is not None and "test" in row.scores else ""
        alike = (*(look.near or (None, None)), look.mirrored, look.order)
        near = ["none" if value is None else _cosine(value) for value in alike]
        ends = [f"{layer.mean():.1f} ({layer.min():.1f} to {layer.max():.1f})" for layer in (look.far[0], look.far[-1])]
        cells.append([text(name), score, *ends, *near])
    words = (
        "Distances are means over heads, with the nearest and the farthest of them in brackets. Neighbours, other places and "
        "the mirror image of a place, left and right: the mean cosine of their positions; order: its correlation with how near "
        "two places lie."
    )
    return f"{table(columns, cells)}<p class='soft'>{words}</p>"


def _far(name: str, look: Look) -> Drawing:
    dots = [
        (float(layer), float(value), f"layer {layer}, head {head}: {value:.3g} pixels")
        for layer, row in enumerate(look.far)
        for head, value in enumerate(row)
    ]
    title = f"Mean attention distance: {name}, a dot a head"
    return chart(title, f"pixels of {look.width}", "layer", dots=dots, places=len(look.far), low=0.0)


def _rolled(name: str, look: Look) -> Drawing:
    """As the authors draw it: the picture, and below it what of it is lit by attention."""
    shapes: list[Shape] = [Words((0, 10), "the picture"), Words((0, SIDE + GAP + 26), "lit by what arrives")]
    for number, (pixels, values) in enumerate(zip(look.pictures, look.maps, strict=True)):
        left, (high, wide) = 112 + number * (SIDE + GAP), pixels.shape[:2]
        light = Image.fromarray((values / max(float(values.max()), 1e-12)).astype(np.float32))
        mask = np.asarray(light.resize((wide, high), Image.Resampling.BILINEAR)).clip(0, 1)
        lit = np.round(pixels * mask[..., None]).astype(np.uint8)
        shapes.append(Shown((left, 0, SIDE, SIDE), Image.fromarray(pixels), wide > SIDE))
        shapes.append(Shown((left, SIDE + GAP, SIDE, SIDE), Image.fromarray(lit), wide > SIDE))
    size = 112 + len(look.pictures) * (SIDE + GAP), 2 * SIDE + GAP
    return Drawing(f"Rollout: {name}", size, tuple(shapes))


def _numbers(look: Look) -> dict[str, Any]:
    near, other = look.near or (None, None)
    far = [[round(float(value), 3) for value in row] for row in look.far]
    return {
        "distance": far,
        "width": look.width,
        "neighbours": near,
        "others": other,
        "mirrored": look.mirrored,
        "order": look.order,
    }


EXPERIMENT = Experiment(
    name="inside",
    title="Figures 6, 7, 10 and 11: what is inside",
    paper="The first layer's filters resemble plausible basis functions of the fine structure within a patch; closer patches "
    "have more similar position embeddings, with a row and column structure; some heads attend to most of the picture already "
    "in the lowest layers, others are local there, less so behind a ResNet, and the distance rises with depth; the model "
    "attends to what matters for the class (Dosovitskiy et al. 2021, section 4.5; Figures 6, 7, 10 and 11, of L/16 and L/32).",
    scaled="A ViT of 0.2 million weights and four layers and a hybrid of as many multiply-adds, on some thousands of small "
    "pictures, one training each. With --weights any checkpoint is looked at in the same way, such as the published L/16.",
    limits="Four layers are few to speak of depth, and short trainings leave positions and filters near the noise they began "
    "as: a published checkpoint shows more. Rollout is what could have arrived, and not what decided: vitrail explain --trust "
    "measures which maps to believe.",
    trials=trials,
    measure=measure,
    tell=tell,
    takes_weights=True,
)
