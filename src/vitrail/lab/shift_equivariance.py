"""``vitrail lab shift``: the inductive bias of section 3.1, measured as the response of features to shifts of the image.

A convolution is translation equivariant, so its feature map moves with the image. A Vision Transformer is so only for whole
patches, and only up to its position embeddings. All models have one position per four pixels and use average pooling.

b images, c channels, d width, y and x positions of the feature map.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.augment.policy import get_policy
from vitrail.data.batch_transforms import EvalTransform
from vitrail.data.sources.dataset import evenly_spaced
from vitrail.lab.experiment import (
    Experiment,
    ExperimentOptions,
    ExperimentResult,
    format_percent,
    get_scores,
    group_by,
    mean_and_ci,
)
from vitrail.lab.small_recipe import MUON, SGD, closest_compute, small_recipe, small_vit
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.models.config import ModelConfig, ResNetConfig
from vitrail.models.resnet import ResNet
from vitrail.models.vit import ViT
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.html import html_table
from vitrail.training.build import build_model, recipe_task
from vitrail.training.dataset import load_training_data
from vitrail.weights.load import load

MEASURED_IMAGES = 256
STRIDE = 4  # pixels per position, in every model here
SHIFTS = tuple(range(1, 2 * STRIDE + 1))  # pixels
VIT, VIT_NO_POSITIONS, RESNET = "ViT", "ViT, no positions", "ResNet"
CIRCULAR = ", circular padding"
STATES = ("trained", "untrained")
MEASURES = {"map": "shifted feature map", "pooled": "pooled features"}
KINDS = (*MEASURES, "consistency")
EXPLANATION = (
    '<p class="soft">Cosine similarity of features before and after the shift: of every position of the feature map with the '
    "position that its pixels came from, and of the pooled features. 1 is equal, 0 is as for two unrelated images.</p>"
)


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    """Return the jobs, without shifts in training, so that equivariance is due to the architecture."""
    no_shift = get_policy("eval", hflip=0.5)
    return [
        TrainingJob(
            {"arm": name, "seed": seed}, small_recipe(options, model, seed, SGD if name == RESNET else MUON, augment=no_shift)
        )
        for seed in options.seeds
        for name, model in models(options).items()
    ]


def models(options: ExperimentOptions) -> dict[str, ModelConfig]:
    """Return the models, with equal numbers of positions and about equal multiply-adds."""
    with_positions, without_positions = (
        small_vit(options, patch=(STRIDE, STRIDE), position=position) for position in ("learned1d", "none")
    )
    image, channels, classes = with_positions.image, with_positions.channels, with_positions.classes
    candidates = [
        ResNetConfig(stages=(units,), width=width, image=image, channels=channels, classes=classes)
        for units in range(1, 9)
        for width in (32, 64)
    ]
    return {VIT: with_positions, VIT_NO_POSITIONS: without_positions, RESNET: closest_compute(with_positions, candidates)}


def measure(run: Path, job: TrainingJob) -> dict[str, Any]:
    data = load_training_data(job.recipe)
    source = data.test if len(data.test) else data.validation
    indices = evenly_spaced(len(source), MEASURED_IMAGES)
    images = EvalTransform(job.recipe.preprocess)(source, np.zeros_like(indices), indices).images
    built = {"trained": load(run / "best"), "untrained": build_model(job.recipe, recipe_task(job.recipe, data), resumed=False)}
    measurements = {"": {state: measure_shifts(model, images) for state, model in built.items()}}
    if isinstance(job.recipe.model, ResNetConfig):
        measurements[CIRCULAR] = {state: measure_shifts(with_circular_padding(model), images) for state, model in built.items()}
    return {"shifts": list(SHIFTS), "lines": measurements}


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    arms = {name: group for (name,), group in group_by(rows, "arm").items()}
    lines = dict(_curves(arms))
    parts = [
        line_chart(
            f"Similarity of the {features}, {state}", "cosine", "shift in pixels",
            {name: [(float(pixels), line.mean_at(state, kind, pixels)) for pixels in SHIFTS] for name, line in lines.items()},
            y_min=min([0.0, *(line.mean_at(state, kind, pixels) for line in lines.values() for pixels in SHIFTS)]),
        )
        for kind, features in MEASURES.items()
        for state in STATES
    ]  # fmt: skip
    numbers = {
        name: {state: {kind: [line.mean_at(state, kind, pixels) for pixels in SHIFTS] for kind in KINDS} for state in STATES}
        for name, line in lines.items()
    }
    failures = {name: str(row.failure) for name, group in arms.items() for row in group if row.failure is not None}
    numbers_json = {"arms": numbers, "shifts": list(SHIFTS), "stride": STRIDE, "failed": failures}
    tables = [part for state in STATES for part in (f"<h2>{state.capitalize()}</h2>", _table(arms, lines, state))]
    return ExperimentResult(
        _summary(lines), [*tables, EXPLANATION, *_failure_notes(failures), "<h2>By shift</h2>", *parts], numbers_json
    )


@dataclass(frozen=True)
class ShiftCurve:
    """Measurements of one model over its seeds, with zero or circular padding."""

    rows: list[JobResult]
    padding: str

    def values(self, state: str, kind: str, pixels: int) -> list[float]:
        return [
            row.measurements["lines"][self.padding][state][kind][row.measurements["shifts"].index(pixels)] for row in self.rows
        ]

    def mean_at(self, state: str, kind: str, pixels: int) -> float:
        return mean_and_ci(self.values(state, kind, pixels))[0]


def _curves(arms: dict[str, list[JobResult]]) -> Iterator[tuple[str, ShiftCurve]]:
    for name, group in arms.items():
        finished = [row for row in group if row.failure is None]
        for padding in finished[0].measurements["lines"] if finished else ():
            yield f"{name}{padding}", ShiftCurve(finished, padding)


def _summary(lines: dict[str, ShiftCurve]) -> str:
    if not {VIT, VIT_NO_POSITIONS, RESNET} <= set(lines):
        return "Not all models could be trained, so they cannot be compared."
    patch = {name: line.mean_at("trained", "map", STRIDE) for name, line in lines.items()}
    half = {name: line.mean_at("trained", "pooled", STRIDE // 2) for name, line in lines.items()}
    return (
        f"For a shift by a whole patch of {STRIDE} pixels, the cosine of the shifted feature maps is {patch[VIT]:.2f} for the "
        f"ViT (1 is exactly equivariant), {patch[VIT_NO_POSITIONS]:.2f} without positions, {patch[RESNET]:.2f} for the "
        f"ResNet, and {patch[RESNET + CIRCULAR]:.2f} with circular padding. For a shift by half a patch the cosine of the "
        f"pooled features is {half[VIT]:.2f} for the ViT, {half[VIT_NO_POSITIONS]:.2f} without positions, and "
        f"{half[RESNET]:.2f} for the ResNet."
    )


def _failure_notes(failures: dict[str, str]) -> Iterator[str]:
    for name, reason in failures.items():
        yield f'<p class="bad">{escape(name)} failed: {escape(reason)}</p>'


def _table(arms: dict[str, list[JobResult]], lines: dict[str, ShiftCurve], state: str) -> str:
    """Build the table of a state; predictions only of trained models."""
    measures, trained = [(kind, pixels) for kind in MEASURES for pixels in (1, STRIDE // 2, STRIDE)], state == "trained"
    columns = ["model", *(f"#{kind}, {pixels} px" for kind, pixels in measures)]
    columns += [f"#equal predictions, {STRIDE} px", "#test"] if trained else []
    cells = []
    for name, line in lines.items():
        cells.append([escape(name), *(_cell(line.values(state, kind, pixels)) for kind, pixels in measures)])
        if trained:
            cells[-1] += [
                format_percent(line.values(state, "consistency", STRIDE)),
                format_percent(get_scores(arms[name])) if name in arms else "",
            ]
    return html_table(columns, cells)


def _cell(values: Sequence[float]) -> str:
    centre, half_width = mean_and_ci(values)
    return f"{centre:.2f}" if half_width is None else f'{centre:.2f} <span class="soft">± {half_width:.2f}</span>'


@torch.no_grad()
def measure_shifts(model: nn.Module, images: Float[Tensor, "b c height width"]) -> dict[str, list[float]]:
    """Return, by shift, the similarity of pooled features and feature maps to those of the unshifted image, and the fraction
    of equal predictions; means over images and both axes."""
    model.eval()
    before = feature_map(model, images)
    measurements: dict[str, list[float]] = {"pooled": [], "map": [], "consistency": []}
    for pixels in SHIFTS:
        after = [feature_map(model, torch.roll(images, pixels, dims=axis)) for axis in (2, 3)]
        equal = [(_predictions(model, shifted) == _predictions(model, before)).float().mean() for shifted in after]
        measurements["pooled"].append(fmean(pooled_similarity(before, shifted) for shifted in after))
        measurements["map"].append(fmean(map_similarity(before, after[axis - 2], pixels, axis) for axis in (2, 3)))
        measurements["consistency"].append(fmean(map(float, equal)))
    return measurements


@torch.no_grad()
def feature_map(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
    """Return the feature map that the model pools."""
    if isinstance(model, ViT):
        grid = model.grid(images)
        tokens = model.encode(model.embed_patches(images), grid)
        return rearrange(tokens[:, model.config.prefix_tokens :], "b (y x) d -> b d y x", y=grid[0])
    assert isinstance(model, ResNet)
    wrap = "circular" if model.conv.padding_mode == "circular" else "constant"
    x = F.max_pool2d(F.pad(model.conv(images), (1, 1, 1, 1), wrap), kernel_size=3, stride=2)
    return F.relu(model.norm(model.stages(x)))


def with_circular_padding(model: nn.Module) -> nn.Module:
    """Replace the zero padding of all convolutions by circular padding, in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.padding_mode = "circular"
    return model


def _predictions(model: nn.Module, maps: Float[Tensor, "b d y x"]) -> Int[Tensor, " b"]:
    head: Any = model.head
    return head(maps.mean(dim=(2, 3))).argmax(dim=1)


def pooled_similarity(before: Float[Tensor, "b d y x"], after: Float[Tensor, "b d y x"]) -> float:
    """Return the mean cosine of pooled features, less their mean over images: 1 invariant, 0 as for two unrelated images."""
    first, second = before.mean(dim=(2, 3)), after.mean(dim=(2, 3))
    common = first.mean(dim=0)
    return float(F.cosine_similarity(first - common, second - common, dim=1).mean())


def map_similarity(before: Float[Tensor, "b d y x"], after: Float[Tensor, "b d y x"], pixels: int, axis: int) -> float:
    """Return the mean cosine to the shifted feature map, 1 if equivariant. Fractional shifts interpolate between positions;
    positions whose pixels were wrapped around are left out."""
    common = before.mean(dim=(0, 2, 3), keepdim=True)
    whole, rest = divmod(pixels, STRIDE)
    fraction = rest / STRIDE
    expected = (1 - fraction) * torch.roll(before, whole, axis) + fraction * torch.roll(before, whole + 1, axis)
    similarity = F.cosine_similarity(expected - common, after - common, dim=1)
    first = whole + (rest > 0)
    return float(similarity.narrow(axis - 1, first, similarity.shape[axis - 1] - first).mean())


EXPERIMENT = Experiment(
    name="shift",
    title="Section 3.1: inductive bias, shift equivariance of features",
    paper="In CNNs locality, two-dimensional neighbourhood and translation equivariance are baked into each layer; in ViT "
    "only MLP layers are local and translationally equivariant, and self-attention is global (Dosovitskiy et al. 2021, "
    "section 3.1). The paper does not measure it.",
    scaled="Models with a few hundred thousand parameters, one position per four pixels and multiply-adds equal to within a "
    "tenth, trained on small images without shifts. The ViT without positions isolates the effect of position embeddings.",
    limits="Images are shifted cyclically, while the zero padding of a ResNet's convolutions stays in place; with circular "
    "padding it sees the opposite edge instead, which it was not trained with. More data, or shifts in training, can teach "
    "either family equivariance. Half a patch is compared with the mean of two positions, which no feature map has to match.",
    jobs=jobs,
    measure=measure,
    measured_images=MEASURED_IMAGES * len(STATES) * (1 + 2 * len(SHIFTS)),
    build_result=build_result,
)
