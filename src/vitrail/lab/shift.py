"""``vitrail lab shift``: the inductive bias of section 3.1, measured as the response of features to shifts of the image.

A convolution is translation equivariant, so its feature map moves with the image. A Vision Transformer is so only for whole
patches, and only up to its position embeddings. All models have one position per four pixels and use average pooling.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.augment.policy import policy
from vitrail.data.view import Plain
from vitrail.lab.base import MUON, SGD, alike, recipe, vit
from vitrail.lab.experiment import Asked, Experiment, Told, by, scores, shown, spread
from vitrail.lab.look import spread as spread_over
from vitrail.lab.moving import SHIFTS, STRIDE, joined, moved
from vitrail.lab.trial import Row, Trial
from vitrail.models.settings import ModelConfig, ResNetConfig
from vitrail.report.chart import chart
from vitrail.report.markup import text
from vitrail.report.page import table
from vitrail.train.data import opened
from vitrail.train.purpose import model_of
from vitrail.weights.load import load

PICTURES = 256
VIT, BARE, RESNET = "ViT", "ViT, no positions", "ResNet"
JOINED = ", circular padding"
STATES = ("trained", "untrained")
MEASURES = {"map": "shifted feature map", "pooled": "pooled features"}
KINDS = (*MEASURES, "consistency")
WORDS = (
    '<p class="soft">Cosine similarity of features before and after the shift: of every position of the feature map with the '
    "position that its pixels came from, and of the pooled features. 1 is equal, 0 is as for two unrelated images.</p>"
)


def trials(asked: Asked) -> list[Trial]:
    """Return the jobs, without shifts in training, so that equivariance is due to the architecture."""
    unmoved = policy("eval", flip=0.5)
    return [
        Trial({"arm": name, "seed": seed}, recipe(asked, model, seed, SGD if name == RESNET else MUON, augment=unmoved))
        for seed in asked.seeds
        for name, model in models(asked).items()
    ]


def models(asked: Asked) -> dict[str, ModelConfig]:
    """Return the models, with equal numbers of positions and about equal multiply-adds."""
    with_places, bare = (vit(asked, patch=(STRIDE, STRIDE), position=how) for how in ("learned1d", "none"))
    image, channels, classes = with_places.image, with_places.channels, with_places.classes
    options = [
        ResNetConfig(stages=(units,), width=width, image=image, channels=channels, classes=classes)
        for units in range(1, 9)
        for width in (32, 64)
    ]
    return {VIT: with_places, BARE: bare, RESNET: alike(with_places, options)}


def measure(run: Path, trial: Trial) -> dict[str, Any]:
    data = opened(trial.recipe).data
    source = data.test if len(data.test) else data.validation
    indices = spread_over(len(source), PICTURES)
    images = Plain(trial.recipe.preprocess)(source, np.zeros_like(indices), indices).images
    built = {"trained": load(run / "best"), "untrained": model_of(trial.recipe, data, resumed=False)}
    found = {"": {state: moved(model, images) for state, model in built.items()}}
    if isinstance(trial.recipe.model, ResNetConfig):
        found[JOINED] = {state: moved(joined(model), images) for state, model in built.items()}
    return {"shifts": list(SHIFTS), "lines": found}


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    arms = {name: group for (name,), group in by(rows, "arm").items()}
    lines = dict(_lines(arms))
    parts = [
        chart(
            f"Similarity of the {words}, {state}", "cosine", "shift in pixels",
            {name: [(float(pixels), line.at(state, kind, pixels)) for pixels in SHIFTS] for name, line in lines.items()},
            low=min([0.0, *(line.at(state, kind, pixels) for line in lines.values() for pixels in SHIFTS)]),
        )
        for kind, words in MEASURES.items()
        for state in STATES
    ]  # fmt: skip
    numbers = {
        name: {state: {kind: [line.at(state, kind, pixels) for pixels in SHIFTS] for kind in KINDS} for state in STATES}
        for name, line in lines.items()
    }
    failed = {name: str(row.failed) for name, group in arms.items() for row in group if row.failed is not None}
    told = {"arms": numbers, "shifts": list(SHIFTS), "stride": STRIDE, "failed": failed}
    tables = [part for state in STATES for part in (f"<h2>{state.capitalize()}</h2>", _table(arms, lines, state))]
    return Told(_answer(lines), [*tables, WORDS, *_failed(failed), "<h2>By shift</h2>", *parts], told)


@dataclass(frozen=True)
class Line:
    """Measurements of one model over its seeds, with zero or circular padding."""

    rows: list[Row]
    way: str

    def values(self, state: str, kind: str, pixels: int) -> list[float]:
        return [row.measured["lines"][self.way][state][kind][row.measured["shifts"].index(pixels)] for row in self.rows]

    def at(self, state: str, kind: str, pixels: int) -> float:
        return spread(self.values(state, kind, pixels))[0]


def _lines(arms: dict[str, list[Row]]) -> Iterator[tuple[str, Line]]:
    for name, group in arms.items():
        whole = [row for row in group if row.failed is None]
        for way in whole[0].measured["lines"] if whole else ():
            yield f"{name}{way}", Line(whole, way)


def _answer(lines: dict[str, Line]) -> str:
    if not {VIT, BARE, RESNET} <= set(lines):
        return "Not all models could be trained, so they cannot be compared."
    patch = {name: line.at("trained", "map", STRIDE) for name, line in lines.items()}
    half = {name: line.at("trained", "pooled", STRIDE // 2) for name, line in lines.items()}
    return (
        f"For a shift by a whole patch of {STRIDE} pixels, the cosine of the shifted feature maps is {patch[VIT]:.2f} for the "
        f"ViT (1 is exactly equivariant), {patch[BARE]:.2f} without positions, {patch[RESNET]:.2f} for the ResNet, and "
        f"{patch[RESNET + JOINED]:.2f} with circular padding. For a shift by half a patch the cosine of the pooled features is "
        f"{half[VIT]:.2f} for the ViT, {half[BARE]:.2f} without positions, and {half[RESNET]:.2f} for the ResNet."
    )


def _failed(failed: dict[str, str]) -> Iterator[str]:
    for name, why in failed.items():
        yield f'<p class="bad">{text(name)} failed: {text(why)}</p>'


def _table(arms: dict[str, list[Row]], lines: dict[str, Line], state: str) -> str:
    """Build the table of a state; predictions only of trained models."""
    places, trained = [(kind, pixels) for kind in MEASURES for pixels in (1, STRIDE // 2, STRIDE)], state == "trained"
    columns = ["model", *(f"#{kind}, {pixels} px" for kind, pixels in places)]
    columns += [f"#equal predictions, {STRIDE} px", "#test"] if trained else []
    cells = []
    for name, line in lines.items():
        cells.append([text(name), *(_cell(line.values(state, kind, pixels)) for kind, pixels in places)])
        if trained:
            cells[-1] += [shown(line.values(state, "consistency", STRIDE)), shown(scores(arms[name])) if name in arms else ""]
    return table(columns, cells)


def _cell(values: Sequence[float]) -> str:
    middle, half = spread(values)
    return f"{middle:.2f}" if half is None else f'{middle:.2f} <span class="soft">± {half:.2f}</span>'


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
    trials=trials,
    measure=measure,
    looks=PICTURES * len(STATES) * (1 + 2 * len(SHIFTS)),
    tell=tell,
)
