"""``vitrail lab shift``: the inductive bias of section 3.1, as what happens to features when the picture moves.

A convolution does the same everywhere, so its map of features moves with the picture. A Vision Transformer has that only for
whole patches, and only as far as its positions let it. All models have one place for every four pixels and pool by the average.
b pictures, d width, y and x places of the map.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.augment.policy import policy
from vitrail.data.view import Plain
from vitrail.lab.experiment import Asked, Experiment, Told, by, scores, shown, spread
from vitrail.lab.small import TINY, Small, small
from vitrail.lab.trial import Row, Trial
from vitrail.models.resnet import ResNet
from vitrail.models.settings import ModelConfig, ResNetConfig, ViTConfig
from vitrail.models.vit import ViT
from vitrail.report.chart import chart
from vitrail.report.page import table, text
from vitrail.train.data import opened
from vitrail.train.purpose import model_of
from vitrail.train.recipe import Optim, Recipe, Schedule
from vitrail.weights.load import load

STRIDE = 4
SHIFTS = tuple(range(1, 2 * STRIDE + 1))  # pixels
PICTURES = 256
STEPS = 1000
VIT, BARE, RESNET = "ViT", "ViT without positions", "ResNet"
STATES = ("trained", "untrained")
MEASURES = {"pooled": "of the pooled features", "map": "of the map, moved along"}


def trials(asked: Asked) -> list[Trial]:
    seen = small(TINY if asked.quick else asked.data, STRIDE)
    return [
        Trial({"arm": name, "seed": seed}, _recipe(seen, model, seed))
        for seed in asked.seeds
        for name, model in models(seen).items()
    ]


def models(seen: Small) -> dict[str, ModelConfig]:
    """Of about as many multiply-adds, with as many places."""
    plain: dict[str, Any] = {"image": seen.image, "channels": seen.channels, "classes": seen.classes}
    vit: dict[str, Any] = {"width": 64, "depth": 4, "mlp": 256, "heads": 4, "patch": (STRIDE, STRIDE), "pool": "gap", **plain}
    return {
        VIT: ViTConfig(**vit),
        BARE: ViTConfig(position="none", **vit),
        RESNET: ResNetConfig(stages=(3,), width=64, **plain),
    }


def _recipe(seen: Small, model: ModelConfig, seed: int) -> Recipe:
    """Nothing is shifted while they learn: what they do then is their own."""
    return Recipe(
        name="shift", data=seen.data, model=model, preprocess=seen.preprocess, steps=STEPS, batch=seen.batch, seed=seed,
        augment=policy("plain", flip=0.5), optim=Optim(lr=1e-3, weight_decay=0.05, clip=1.0),
        schedule=Schedule(warmup=STEPS // 10), evaluate=STEPS // 5, checkpoint=STEPS // 5,
    )  # fmt: skip


def measure(run: Path, trial: Trial) -> dict[str, Any]:
    data = opened(trial.recipe).data
    source = data.test if len(data.test) else data.validation
    indices = np.arange(min(len(source), PICTURES))
    images = Plain(trial.recipe.preprocess)(source, np.zeros_like(indices), indices).images
    built = {"trained": load(run / "best"), "untrained": model_of(trial.recipe, data, resumed=False)}
    return {"shifts": list(SHIFTS), **{state: moved(model, images) for state, model in built.items()}}


@torch.no_grad()
def moved(model: nn.Module, images: Float[Tensor, "b c height width"]) -> dict[str, list[float]]:
    """By shift, means over pictures and over both ways: how alike features are to those of the picture as it was, and on how
    many pictures the answer is the same."""
    model.eval()
    before = mapped(model, images)
    said = model(images).argmax(dim=1)
    found: dict[str, list[float]] = {"pooled": [], "map": [], "same": []}
    for pixels in SHIFTS:
        ways = [torch.roll(images, pixels, dims=axis) for axis in (2, 3)]
        after = [mapped(model, way) for way in ways]
        found["pooled"].append(_mean(alike_pooled(before, each) for each in after))
        found["map"].append(_mean(alike_map(before, each, pixels, axis) for each, axis in zip(after, (2, 3), strict=True)))
        found["same"].append(_mean(float((model(way).argmax(dim=1) == said).float().mean()) for way in ways))
    return found


def mapped(model: nn.Module, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d y x"]:
    """What is pooled, where it lies."""
    if isinstance(model, ViT):
        grid = model.grid(images)
        tokens = model.encode(model.patches(images), grid)
        return rearrange(tokens[:, model.config.prefix :], "b (y x) d -> b d y x", y=grid[0])
    assert isinstance(model, ResNet)
    seen: list[Tensor] = []
    hook = model.norm.register_forward_hook(lambda _, __, output: seen.append(F.relu(output)))
    try:
        model.features(images)
    finally:
        hook.remove()
    return seen[0]


def alike_pooled(before: Float[Tensor, "b d y x"], after: Float[Tensor, "b d y x"]) -> float:
    """1: as if nothing had moved; 0: no more than two pictures are. What all pictures have in common is taken away first."""
    first, second = before.mean(dim=(2, 3)), after.mean(dim=(2, 3))
    common = first.mean(dim=0)
    return float(F.cosine_similarity(first - common, second - common, dim=1).mean())


def alike_map(before: Float[Tensor, "b d y x"], after: Float[Tensor, "b d y x"], pixels: int, axis: int) -> float:
    """1: every place has the features that the place had from which its pixels came. Between places, of the two in shares;
    places whose pixels came in from the other side are left out."""
    common = before.mean(dim=(0, 2, 3), keepdim=True)
    whole, rest = divmod(pixels, STRIDE)
    share = rest / STRIDE
    came = (1 - share) * torch.roll(before, whole, axis) + share * torch.roll(before, whole + 1, axis)
    alike = F.cosine_similarity(came - common, after - common, dim=1)
    first = whole + (rest > 0)
    return float(alike.narrow(axis - 1, first, alike.shape[axis - 1] - first).mean())


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    arms = {name: group for (name,), group in by(rows, "arm").items()}
    whole = {name: [row for row in group if row.failed is None] for name, group in arms.items()}
    parts = [
        chart(
            f"How alike: {words}, {state}", "cosine", "pixels that the picture is shifted by",
            {name: _line(group, state, kind) for name, group in whole.items() if group}, low=0.0,
        )
        for kind, words in MEASURES.items()
        for state in STATES
    ]  # fmt: skip
    numbers = {
        name: {state: {kind: _line(group, state, kind) for kind in (*MEASURES, "same")} for state in STATES}
        for name, group in whole.items()
    }
    return Told(_answer(whole), [_table(arms, whole), *parts], {"arms": numbers, "stride": STRIDE})


def _answer(whole: dict[str, list[Row]]) -> str:
    if not all(whole.values()):
        return f"{', '.join(name for name, group in whole.items() if not group)} could not be trained, so nothing is compared."
    one, patch = ({name: _at(group, "trained", "map", pixels) for name, group in whole.items()} for pixels in (1, STRIDE))
    pooled = {name: _at(group, "trained", "pooled", STRIDE) for name, group in whole.items()}
    return (
        f"When the picture moves by one pixel, the map of features moves along to {one[RESNET]:.2f} in the ResNet and "
        f"{one[VIT]:.2f} in the ViT (1 is exactly); by a whole patch of {STRIDE} pixels to {patch[RESNET]:.2f} and "
        f"{patch[VIT]:.2f}, and to {patch[BARE]:.2f} in a ViT without positions. Pooled, "
        f"{pooled[RESNET]:.2f}, {pooled[VIT]:.2f} and {pooled[BARE]:.2f} is left of the features then."
    )


def _line(rows: Sequence[Row], state: str, kind: str) -> list[tuple[float, float]]:
    return [(float(pixels), _at(rows, state, kind, pixels)) for pixels in SHIFTS] if rows else []


def _at(rows: Sequence[Row], state: str, kind: str, pixels: int) -> float:
    return spread(_values(rows, state, kind, pixels))[0]


def _values(rows: Sequence[Row], state: str, kind: str, pixels: int) -> list[float]:
    return [row.measured[state][kind][row.measured["shifts"].index(pixels)] for row in rows]


def _table(arms: dict[str, list[Row]], whole: dict[str, list[Row]]) -> str:
    columns = ("model", "weights", *(f"#map, {pixels} px" for pixels in _told()), *(f"#pooled, {pixels} px" for pixels in _told()),
               f"#same answer, {STRIDE} px", "#top-1")  # fmt: skip
    cells = []
    for name, rows in arms.items():
        for state in STATES:
            if not whole[name]:
                cells.append([text(name), state, *["none"] * 2 * len(_told()), "none", text(rows[0].failed)])
                continue
            near = [_cell(_values(whole[name], state, kind, pixels)) for kind in MEASURES for pixels in _told()]
            near = near[len(_told()) :] + near[: len(_told())]  # the map first
            same = shown(_values(whole[name], state, "same", STRIDE)) if state == "trained" else ""
            cells.append([text(name), state, *near, same, shown(scores(rows)) if state == "trained" else ""])
    return table(columns, cells)


def _told() -> tuple[int, ...]:
    return 1, STRIDE // 2, STRIDE


def _cell(values: Sequence[float]) -> str:
    middle, half = spread(values)
    return f"{middle:.3f}" if half is None else f'{middle:.3f} <span class="soft">± {half:.3f}</span>'


EXPERIMENT = Experiment(
    name="shift",
    title="Inductive bias: what a shift of the picture does to features",
    paper="In CNNs locality, two-dimensional neighbourhood and translation equivariance are baked into each layer; in ViT only "
    "MLP layers are local and translationally equivariant, and self-attention is global (Dosovitskiy et al. 2021, section 3.1). "
    "The paper has no measurement of it.",
    scaled="Models of a few hundred thousand weights, with one place for every four pixels and as many multiply-adds to within a "
    "tenth, trained on small pictures without any shifts. The ViT without positions shows what positions are to blame for.",
    limits="Pictures are rolled: what leaves on one side comes in on the other, and the zeros around a ResNet's convolutions do not "
    "move along. More data, or shifts in training, teach either family what it is not born with. Half of a patch is compared with "
    "the mean of two places, which no map has to follow.",
    trials=trials,
    measure=measure,
    tell=tell,
)
