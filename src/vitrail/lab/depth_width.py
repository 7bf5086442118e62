"""``vitrail lab depth-width``: Figure 8, one dimension of a ViT changed at a time, accuracy against compute."""

from collections.abc import Sequence
from typing import Any

from vitrail.lab.base import data_of, recipe, seen, vit
from vitrail.lab.experiment import Asked, Experiment, Told, by
from vitrail.lab.show import cell, gap, middle, over, plain
from vitrail.lab.trial import Row, Trial
from vitrail.models.settings import Pair, times
from vitrail.report.markup import text
from vitrail.report.page import table

BASE: dict[str, Any] = {"depth": 4, "width": 64, "mlp": 128}
AROUND = "base"


def arms(size: Pair) -> dict[str, list[dict[str, Any]]]:
    """Return the models by changed dimension; patches are a half, a quarter and a seventh or eighth of the image wide."""
    coarse, middle_, fine = ((14, 14), (7, 7), (4, 4)) if size == (28, 28) else tuple(
        (max(size[0] // part, 1), max(size[1] // part, 1)) for part in (2, 4, 8)
    )  # fmt: skip
    base = {**BASE, "patch": middle_}
    return {
        AROUND: [base],
        "depth": [{**base, "depth": depth} for depth in (1, 2, 8)],
        "width": [{**base, "width": width} for width in (32, 128)],
        "MLP": [{**base, "mlp": mlp} for mlp in (32, 512)],
        "patch": [{**base, "patch": patch} for patch in (coarse, fine)],
        "all": [
            {"depth": 2, "width": 48, "mlp": 96, "patch": coarse},
            {"depth": 6, "width": 80, "mlp": 160, "patch": middle_},
        ],
    }


def trials(asked: Asked) -> list[Trial]:
    chosen = arms(seen(data_of(asked)).size)
    if asked.quick:
        chosen = {name: chosen[name][:1] for name in (AROUND, "depth", "patch")}
    return [
        Trial({"changed": name, "model": _said(changes), "seed": seed}, recipe(asked, vit(asked, **changes), seed))
        for seed in asked.seeds
        for name, models in chosen.items()
        for changes in models
    ]


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    groups = by(rows, "changed", "model")
    (base,) = [found for (name, _), found in groups.items() if name == AROUND]
    lines: dict[str, dict[float, list[Row]]] = {}
    for (name, _), found in groups.items():
        if name != AROUND:
            lines.setdefault(name, {base[0].macs / base[0].macs: base})[found[0].macs / base[0].macs] = found
    cells, numbers = [], []
    for (name, model), found in groups.items():
        apart, share = gap(found, base), found[0].macs / base[0].macs
        ahead = "" if name == AROUND or apart is None else text(apart.words)
        cells.append([text(name), text(model), f"{found[0].parameters:,}", f"{share:.2f}", cell(found), ahead])
        numbers.append(plain(found, changed=name, model=model, compute=share, parameters=found[0].parameters))
    drawing = over(
        "Test accuracy by compute, one dimension at a time", "compute relative to the base", lines, lambda x: f"{x:.2g}"
    )
    columns = ("changed", "depth, width, MLP, patch", "#parameters", "#relative compute", "#test", "#minus the base")
    return Told(_answer(base, groups), [drawing, table(columns, cells)], {"models": numbers})


def _answer(base: list[Row], groups: dict[tuple[Any, ...], list[Row]]) -> str:
    larger = {
        f"{name} ({model})": (found, apart)
        for (name, model), found in groups.items()
        if name != AROUND and found[0].macs > base[0].macs and (apart := gap(found, base)) is not None
    }
    if not larger:
        return f"The base has {middle(base):.1%} on test; no larger model finished."
    by_validation = {name: middle(found, split="validation") for name, (found, _) in larger.items()}
    most, least = max(larger, key=by_validation.__getitem__), min(larger, key=by_validation.__getitem__)
    found, apart = larger[most]
    how = "significantly" if apart.clear and apart.mean > 0 else "not significantly"
    return (
        f"Of the {len(larger)} models larger than the base ({middle(base):.1%} on test), {most} is the best on validation, "
        f"and on test {how} better than the base: {apart.words} at {found[0].macs / base[0].macs:.1f} times the compute; "
        f"{least} is the worst, {larger[least][1].words}. In brackets: depth, width, MLP, patch."
    )


def _said(changes: dict[str, Any]) -> str:
    high, wide = changes["patch"]
    return f"{changes['depth']}, {changes['width']}, {changes['mlp']}, {high if high == wide else times(changes['patch'])}"


EXPERIMENT = Experiment(
    name="depth-width",
    title="Figure 8: depth, width, MLP and patch size",
    paper="Around a ViT with 8 layers, width 1024, MLP 2048 and patches of 32, depth improves most (up to 64 layers, with "
    "diminishing returns from 16 on), width least, and smaller patches give a robust gain without more parameters "
    "(Dosovitskiy et al. 2021, D.2, Figure 8: ImageNet 5-shot accuracy by relative compute, plotted without a table).",
    scaled="Around a ViT with 4 layers, width 64, MLP 128 and sixteen patches, each dimension up and down by a factor of two "
    "or four. All train for the same number of steps on a few thousand small images, at one learning rate, three seeds.",
    limits="With so few steps and images a larger model may learn more slowly as well as better, and one learning rate need "
    "not suit all widths. The paper's depths of 16 and more are out of reach.",
    tell=tell,
    trials=trials,
)
