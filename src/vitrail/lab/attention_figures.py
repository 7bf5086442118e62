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

from vitrail.data.sources.open import open_dataset
from vitrail.explain.attention import as_vit
from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult, format_percent
from vitrail.lab.model_snapshot import ModelSnapshot, snapshot_from_json, take_snapshot
from vitrail.lab.small_recipe import MUON, STEPS, matched_hybrid, small_recipe, small_vit
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.models.build import Model
from vitrail.plot.canvas import Figure, ImageShape, Shape, Text
from vitrail.plot.heatmap import filter_grid, heatmap_grid
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.html import html_table
from vitrail.training.dataset import load_training_data
from vitrail.weights.load import load

VIT, HYBRID, CHECKPOINT = "ViT", "hybrid", "given checkpoint"
SLOW, SHORT = "ViT, half the learning rate", "ViT, half the steps"
QUICK_IMAGES = 8  # images of a quick test of a checkpoint
SIDE, GAP = 96, 8
MIN_COSINE_DIFFERENCE = 0.05  # cosine; less is the noise of the initialisation


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    """Return jobs for the paper's model, its hybrid, and other hyperparameters as in Figure 10."""
    checkpoint_model(options)  # a bad checkpoint is an error before anything is trained
    model = small_vit(options, position="learned1d", pool="cls")
    slow = replace(MUON, lr=MUON.lr / 2, muon_lr=MUON.muon_lr / 2)
    recipes = {VIT: small_recipe(options, model), HYBRID: small_recipe(options, matched_hybrid(model))}
    if not options.quick:
        recipes |= {SLOW: small_recipe(options, model, optim=slow), SHORT: small_recipe(options, model, steps=STEPS // 2)}
    return [TrainingJob({"arm": name, "seed": 0}, recipe) for name, recipe in recipes.items()]


def measure(run: Path, job: TrainingJob) -> dict[str, Any]:
    return take_snapshot(load(run / "best"), load_training_data(job.recipe)).to_json_dict()


def checkpoint_model(options: ExperimentOptions) -> Model | None:
    return None if options.weights is None else _load_vit(options.weights)


@cache
def _load_vit(weights: str) -> Model:
    model = load(weights)
    as_vit(model)
    return model


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    snapshots = {str(row.condition["arm"]): snapshot_from_json(row.measurements) for row in rows if row.failure is None}
    if (model := checkpoint_model(options)) is not None:
        snapshots[CHECKPOINT] = take_snapshot(model, open_dataset(options.data), *([QUICK_IMAGES] if options.quick else []))
    parts: list[str | Figure] = [_table(rows, snapshots), "<h2>Mean attention distance (Figures 7, right, and 11)</h2>"]
    parts += [_distance_figure(name, snapshot) for name, snapshot in snapshots.items()]
    parts.append("<h2>Position embedding similarity (Figures 7, middle, and 10)</h2>")
    parts += [
        heatmap_grid(snapshot.position_similarity, f"Position similarity: {name}")
        for name, snapshot in snapshots.items()
        if snapshot.position_similarity is not None
    ]
    parts.append("<h2>Patch embedding filters (Figure 7, left)</h2>")
    parts += [filter_grid(snapshot.filters, f"Principal components of the filters: {name}", columns=14, side=40)
              for name, snapshot in snapshots.items() if name not in (SLOW, SHORT)]  # fmt: skip
    parts.append("<h2>Attention rollout (Figure 6)</h2>")
    parts += [_rollout_figure(name, snapshot) for name, snapshot in snapshots.items() if name not in (SLOW, SHORT)]
    failed = {str(row.condition["arm"]): row.failure for row in rows if row.failure is not None}
    numbers = {name: _numbers(snapshot) for name, snapshot in snapshots.items()}
    return ExperimentResult(
        _summary(snapshots),
        parts,
        {"models": numbers, "failed": failed, "weights": options.weights and Path(options.weights).name},
    )


def _summary(snapshots: dict[str, ModelSnapshot]) -> str:
    return (
        " ".join(_description(name, snapshot) for name, snapshot in snapshots.items() if name in (VIT, HYBRID, CHECKPOINT))
        or "No run finished."
    )


def _description(name: str, snapshot: ModelSnapshot) -> str:
    first, last = snapshot.attention_distance[0], snapshot.attention_distance[-1]
    sentence = (
        f"In the {name} the mean attention distance of the heads of the first layer is {first.min():.1f} to {first.max():.1f} "
        f"pixels on an image of {snapshot.width}, and its mean over heads goes from {first.mean():.1f} in the first layer to "
        f"{last.mean():.1f} in the last"
    )
    if snapshot.neighbour_similarity is None:
        return f"{sentence}; it has no position embedding."
    near, other = snapshot.neighbour_similarity
    more = "more similar" if near - other > MIN_COSINE_DIFFERENCE else "no more similar"
    return f"{sentence}; position embeddings of neighbours are {more} ({_cosine(near)}) than others ({_cosine(other)})."


def _cosine(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # + 0.0: no minus before a zero


def _table(rows: Sequence[JobResult], snapshots: dict[str, ModelSnapshot]) -> str:
    scored = {str(row.condition["arm"]): row for row in rows}
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
    for name in dict.fromkeys([*scored, *snapshots]):
        row, snapshot = scored.get(name), snapshots.get(name)
        if snapshot is None:
            assert row is not None
            cells.append([escape(name), f'<span class="bad">{escape(row.failure)}</span>', *[""] * 6])
            continue
        score = format_percent([row.scores["test"]["top1"]]) if row is not None and "test" in row.scores else ""
        similarities = (
            *(snapshot.neighbour_similarity or (None, None)),
            snapshot.mirror_similarity,
            snapshot.distance_correlation,
        )
        near = ["none" if value is None else _cosine(value) for value in similarities]
        ends = [
            f"{layer.mean():.1f} ({layer.min():.1f} to {layer.max():.1f})"
            for layer in (snapshot.attention_distance[0], snapshot.attention_distance[-1])
        ]
        cells.append([escape(name), score, *ends, *near])
    caption = (
        "Mean attention distances over heads, with minimum and maximum in brackets. Neighbours, other positions and mirror "
        "images (left and right): mean cosine of their position embeddings; correlation: of the cosine with the negative "
        "distance of two positions."
    )
    return f"{html_table(columns, cells)}<p class='soft'>{caption}</p>"


def _distance_figure(name: str, snapshot: ModelSnapshot) -> Figure:
    dots = [
        (float(layer), float(value), f"layer {layer}, head {head}: {value:.3g} pixels")
        for layer, row in enumerate(snapshot.attention_distance)
        for head, value in enumerate(row)
    ]
    title = f"Mean attention distance: {name}, one dot per head"
    return line_chart(
        title, f"pixels of {snapshot.width}", "layer", dots=dots, columns=len(snapshot.attention_distance), y_min=0.0
    )


def _rollout_figure(name: str, snapshot: ModelSnapshot) -> Figure:
    """Draw the rollout as the authors do: the image, and below it the image dimmed by the rollout."""
    shapes: list[Shape] = [Text((0, 10), "image"), Text((0, SIDE + GAP + 26), "rollout")]
    for number, (pixels, values) in enumerate(zip(snapshot.images, snapshot.rollout, strict=True)):
        left, (height, width) = 112 + number * (SIDE + GAP), pixels.shape[:2]
        rollout = Image.fromarray((values / max(float(values.max()), 1e-12)).astype(np.float32))
        mask = np.asarray(rollout.resize((width, height), Image.Resampling.BILINEAR)).clip(0, 1)
        dimmed = np.round(pixels * mask[..., None]).astype(np.uint8)
        shapes.append(ImageShape((left, 0, SIDE, SIDE), Image.fromarray(pixels), width > SIDE))
        shapes.append(ImageShape((left, SIDE + GAP, SIDE, SIDE), Image.fromarray(dimmed), width > SIDE))
    size = 112 + len(snapshot.images) * (SIDE + GAP), 2 * SIDE + GAP
    return Figure(f"Rollout: {name}", size, tuple(shapes))


def _numbers(snapshot: ModelSnapshot) -> dict[str, Any]:
    near, other = snapshot.neighbour_similarity or (None, None)
    distances = [[round(float(value), 3) for value in row] for row in snapshot.attention_distance]
    return {
        "distance": distances,
        "width": snapshot.width,
        "neighbours": near,
        "other_positions": other,
        "mirror_images": snapshot.mirror_similarity,
        "correlation": snapshot.distance_correlation,
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
    jobs=jobs,
    measure=measure,
    build_result=build_result,
    takes_weights=True,
)
