"""``vitrail lab inside``: Figures 6, 7, 10 and 11 for models trained here and for a given checkpoint.

Patch embedding filters, position embedding similarity, attention distance by depth, and attention rollout.
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
from vitrail.report.markup import text
from vitrail.report.page import table
from vitrail.train.data import opened
from vitrail.weights.load import load

VIT, HYBRID, SLOW, SHORT, GIVEN = "ViT", "hybrid", "ViT, half the learning rate", "ViT, half the steps", "given checkpoint"
QUICK = 8  # images of a quick test of a given checkpoint
SIDE, GAP = 96, 8
CLEAR = 0.05  # cosine; less is the noise of the initialisation


def trials(asked: Asked) -> list[Trial]:
    """Return jobs for the paper's model, its hybrid, and other hyperparameters as in Figure 10."""
    given(asked)  # a bad checkpoint is an error before anything is trained
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
    parts: list[str | Drawing] = [_table(rows, looks), "<h2>Mean attention distance (Figures 7, right, and 11)</h2>"]
    parts += [_far(name, look) for name, look in looks.items()]
    parts.append("<h2>Position embedding similarity (Figures 7, middle, and 10)</h2>")
    parts += [
        tiles(look.positions, f"Position similarity: {name}") for name, look in looks.items() if look.positions is not None
    ]
    parts.append("<h2>Patch embedding filters (Figure 7, left)</h2>")
    parts += [filter_sheet(look.filters, f"Principal components of the filters: {name}", columns=14, side=40)
              for name, look in looks.items() if name not in (SLOW, SHORT)]  # fmt: skip
    parts.append("<h2>Attention rollout (Figure 6)</h2>")
    parts += [_rolled(name, look) for name, look in looks.items() if name not in (SLOW, SHORT)]
    failed = {str(row.of["arm"]): row.failed for row in rows if row.failed is not None}
    numbers = {name: _numbers(look) for name, look in looks.items()}
    return Told(
        _answer(looks), parts, {"models": numbers, "failed": failed, "weights": asked.weights and Path(asked.weights).name}
    )


def _answer(looks: dict[str, Look]) -> str:
    return " ".join(_said(name, look) for name, look in looks.items() if name in (VIT, HYBRID, GIVEN)) or "No run finished."


def _said(name: str, look: Look) -> str:
    first, last = look.far[0], look.far[-1]
    words = (
        f"In the {name} the mean attention distance of the heads of the first layer is {first.min():.1f} to {first.max():.1f} "
        f"pixels on an image of {look.width}, and its mean over heads goes from {first.mean():.1f} in the first layer to "
        f"{last.mean():.1f} in the last"
    )
    if look.near is None:
        return f"{words}; it has no position embedding."
    near, other = look.near
    more = "more similar" if near - other > CLEAR else "no more similar"
    return f"{words}; position embeddings of neighbours are {more} ({_cosine(near)}) than others ({_cosine(other)})."


def _cosine(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no minus before a zero


def _table(rows: Sequence[Row], looks: dict[str, Look]) -> str:
    scored = {str(row.of["arm"]): row for row in rows}
    columns = (
        "model",
        "#top-1",
        "#first layer, pixels",
        "#last layer, pixels",
        "#neighbours",
        "#other positions",
        "#mirror image",
        "#correlation",
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
        "Mean attention distances over heads, with minimum and maximum in brackets. Neighbours, other positions and mirror "
        "images (left and right): mean cosine of their position embeddings; correlation: of the cosine with the negative "
        "distance of two positions."
    )
    return f"{table(columns, cells)}<p class='soft'>{words}</p>"


def _far(name: str, look: Look) -> Drawing:
    dots = [
        (float(layer), float(value), f"layer {layer}, head {head}: {value:.3g} pixels")
        for layer, row in enumerate(look.far)
        for head, value in enumerate(row)
    ]
    title = f"Mean attention distance: {name}, one dot per head"
    return chart(title, f"pixels of {look.width}", "layer", dots=dots, places=len(look.far), low=0.0)


def _rolled(name: str, look: Look) -> Drawing:
    """Draw the rollout as the authors do: the image, and below it the image dimmed by the rollout."""
    shapes: list[Shape] = [Words((0, 10), "image"), Words((0, SIDE + GAP + 26), "rollout")]
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
        "other_positions": other,
        "mirror_images": look.mirrored,
        "correlation": look.order,
    }


EXPERIMENT = Experiment(
    name="inside",
    title="Figures 6, 7, 10 and 11: inspecting the model",
    paper="The filters of the patch embedding resemble plausible basis functions of the fine structure within a patch; closer "
    "patches have more similar position embeddings, with a row and column structure; some heads attend to most of the image "
    "already in the lowest layers, others are local there, less so after a ResNet, and the distance increases with depth; the "
    "model attends to regions relevant for the class (Dosovitskiy et al. 2021, section 4.5; Figures 6, 7, 10 and 11, of L/16 "
    "and L/32).",
    scaled="A ViT with 0.2 million parameters and four layers and a hybrid of as many multiply-adds, on a few thousand small "
    "images, one run each. With --weights any checkpoint is inspected in the same way, such as the published L/16.",
    limits="Four layers are few to speak of depth, and short runs leave positions and filters near their random "
    "initialisation: a published checkpoint shows more. Rollout shows which patches could have influenced the output, not "
    "which did: vitrail explain --faithfulness measures it.",
    trials=trials,
    measure=measure,
    tell=tell,
    takes_weights=True,
)
