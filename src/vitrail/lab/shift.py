"""``vitrail lab shift``: the inductive bias of section 3.1, as what happens to features when the picture moves.

A convolution does the same everywhere, so its map of features moves with the picture. A Vision Transformer has that only for
whole patches, and only as far as its positions let it. All models have one place for every four pixels and pool by the average.
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
from vitrail.report.page import table, text
from vitrail.train.data import opened
from vitrail.train.purpose import model_of
from vitrail.weights.load import load

PICTURES = 256
VIT, BARE, RESNET = "ViT", "ViT, no positions", "ResNet"
JOINED = ", wrapped"
STATES = ("trained", "untrained")
MEASURES = {"map": "the map, moved along", "pooled": "the pooled features"}
KINDS = (*MEASURES, "same")
WORDS = (
    '<p class="soft">How alike features are to those before the shift, as a cosine: of every place of the map to the place '
    "that its pixels came from, and of the pooled features. 1 is the same, 0 no more than two pictures have in common.</p>"
)


def trials(asked: Asked) -> list[Trial]:
    """Nothing is shifted while they learn: what they do then is their own."""
    unmoved = policy("plain", flip=0.5)
    return [
        Trial({"arm": name, "seed": seed}, recipe(asked, model, seed, SGD if name == RESNET else MUON, augment=unmoved))
        for seed in asked.seeds
        for name, model in models(asked).items()
    ]


def models(asked: Asked) -> dict[str, ModelConfig]:
    """With as many places, and about as many multiply-adds."""
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
            f"How alike: {words}, {state}", "cosine", "pixels that the picture is shifted by",
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
    return Told(_answer(lines), [*tables, WORDS, *_failed(failed), "<h2>Shift by shift</h2>", *parts], told)


@dataclass(frozen=True)
class Line:
    """One model in one way to look at it, over its seeds."""

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
        return "Not every model could be trained, so that they cannot be compared."
    patch = {name: line.at("trained", "map", STRIDE) for name, line in lines.items()}
    half = {name: line.at("trained", "pooled", STRIDE // 2) for name, line in lines.items()}
    return (
        f"When the picture moves by a whole patch of {STRIDE} pixels, the ViT's map of features follows with a cosine of "
        f"{patch[VIT]:.2f} (1 is exact), without its positions {patch[BARE]:.2f}, the ResNet's {patch[RESNET]:.2f}, and "
        f"{patch[RESNET + JOINED]:.2f} where its padding is the picture's other side. After a move by half a patch the pooled "
        f"features are alike to {half[VIT]:.2f} in the ViT, {half[BARE]:.2f} without positions, and {half[RESNET]:.2f} in the "
        "ResNet."
    )


def _failed(failed: dict[str, str]) -> Iterator[str]:
    for name, why in failed.items():
        yield f'<p class="bad">{text(name)} failed: {text(why)}</p>'


def _table(arms: dict[str, list[Row]], lines: dict[str, Line], state: str) -> str:
    """Before training there are no answers to speak of."""
    places, trained = [(kind, pixels) for kind in MEASURES for pixels in (1, STRIDE // 2, STRIDE)], state == "trained"
    columns = ["model", *(f"#{kind}, {pixels} px" for kind, pixels in places)]
    columns += [f"#same answer, {STRIDE} px", "#test"] if trained else []
    cells = []
    for name, line in lines.items():
        cells.append([text(name), *(_cell(line.values(state, kind, pixels)) for kind, pixels in places)])
        if trained:
            cells[-1] += [shown(line.values(state, "same", STRIDE)), shown(scores(arms[name])) if name in arms else ""]
    return table(columns, cells)


def _cell(values: Sequence[float]) -> str:
    middle, half = spread(values)
    return f"{middle:.2f}" if half is None else f'{middle:.2f} <span class="soft">± {half:.2f}</span>'


EXPERIMENT = Experiment(
    name="shift",
    title="Inductive bias: what a shift of the picture does to features",
    paper="In CNNs locality, two-dimensional neighbourhood and translation equivariance are baked into each layer; in ViT "
    "only MLP layers are local and translationally equivariant, and self-attention is global (Dosovitskiy et al. 2021, "
    "section 3.1). The paper has no measurement of it.",
    scaled="Models of a few hundred thousand weights, with one place for every four pixels and as many multiply-adds to "
    "within a tenth, trained on small pictures without any shifts. The ViT without positions shows what positions are to "
    "blame for.",
    limits="Pictures are rolled: what leaves on one side comes in on the other, while the zeros around a ResNet's "
    "convolutions stay where they are; wrapped, it has the other side in their place, which it was not trained with. More "
    "data, or shifts in training, teach either family what it is not born with. Half of a patch is compared with the mean of "
    "two places, which no map has to follow.",
    trials=trials,
    measure=measure,
    looks=PICTURES * len(STATES) * (1 + 2 * len(SHIFTS)),
    tell=tell,
)
