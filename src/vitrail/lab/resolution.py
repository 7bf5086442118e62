"""``vitrail lab resolution``: fine-tuning at higher resolution, with the position table interpolated in 2-D or reinitialised.

Trained at low resolution, then fine-tuned at the full image size with the same patch size (Dosovitskiy et al. 2021, 3.2).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import torch

from vitrail.data.loader import evaluation
from vitrail.lab.base import MUON, STEPS, data_of, patch_of, recipe, seen, vit
from vitrail.lab.experiment import Asked, Experiment, Told, by, scores, shown
from vitrail.lab.show import cell, each, gap, middle, plain
from vitrail.lab.trial import Row, Trial
from vitrail.models.settings import Pair, Resize, times
from vitrail.models.vit import ViT
from vitrail.report.markup import text
from vitrail.report.page import table
from vitrail.tasks.classify import Classify
from vitrail.train.data import opened
from vitrail.train.recipe import Recipe
from vitrail.weights.load import load, untold

SHARE = 224 / 384  # low to full resolution, as in the paper
RULES: tuple[Resize, ...] = get_args(Resize)
MODES = {
    "official": "bilinear, corners aligned",
    "timm": "bicubic with antialiasing",
    "huggingface": "bicubic",
    "torchvision": "bicubic, corners aligned",
}
BEFORE, SAME, NEW, PAPER = "before", "low resolution", "new table", "official"
OTHERS = {
    BEFORE: "initial weights of all others",
    SAME: "fine-tuned at low resolution",
    NEW: "reinitialised",
}
FINE = replace(MUON, lr=5e-4, matrix_lr=2.5e-3)


def trials(asked: Asked) -> list[Trial]:
    found = []
    for seed in asked.seeds:
        large, small = recipes(asked, seed)
        before = Trial({"arm": BEFORE, "seed": seed}, small)
        found += [before, Trial({"arm": SAME, "seed": seed}, _tuned(small), before)]
        for rule in RULES[:2] if asked.quick else RULES:
            found.append(Trial({"arm": rule, "seed": seed}, _tuned(recipes(asked, seed, rule)[0]), before))
        found.append(Trial({"arm": NEW, "seed": seed}, _tuned(large), before, anew="positions."))
    return found


def recipes(asked: Asked, seed: int, rule: Resize = "official") -> tuple[Recipe, Recipe]:
    """Return the recipes at full and at low resolution."""
    size = seen(data_of(asked)).size
    side = patch_of(size)
    low = tuple(max(round(length * SHARE / side), 2) * side for length in size)
    large, small = (vit(asked, image=image, position="learned1d", resize=rule) for image in (size, (low[0], low[1])))
    return recipe(asked, large, seed), recipe(asked, small, seed)


def _tuned(made: Recipe) -> Recipe:
    """Return the fine-tuning recipe: fewer steps at a lower learning rate, keeping the classifier."""
    return replace(made.lasting(3 * STEPS // 10), keep_head=True, optim=FINE, ema=None)


def measure(run: Path, trial: Trial) -> dict[str, Any]:
    """Measure the accuracy of the low-resolution model at full resolution, before fine-tuning."""
    if trial.of["arm"] != BEFORE:
        return {}
    made, data = trial.recipe, opened(trial.recipe).data
    assert made.model.image == made.preprocess.image
    large = _large(seen(made.data).size)
    loader = evaluation(data.test, replace(made.preprocess, image=large), 256)
    found: dict[str, Any] = {}
    with untold():
        for rule in RULES:
            found[rule] = Classify(len(data.names)).evaluate(load(run, image=large, resize=rule), loader, 0)["top1"]
        model = load(run, image=large)
    assert isinstance(model, ViT)
    torch.manual_seed(made.seed)
    for name, weight in model.named_parameters():
        if name.startswith("positions."):
            torch.nn.init.normal_(weight, std=0.02)
    found[NEW] = Classify(len(data.names)).evaluate(model, loader, 0)["top1"]
    return {"before_finetuning": found}


def _large(size: Pair) -> Pair:
    side = patch_of(size)
    return max(round(size[0] / side), 1) * side, max(round(size[1] / side), 1) * side


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    arms = {name: found for (name,), found in by(rows, "arm").items()}
    large, small = (made.model.image for made in recipes(asked, 0))
    once = {
        name: [
            row.measured["before_finetuning"][name] for row in arms[BEFORE] if name in row.measured.get("before_finetuning", {})
        ]
        for name in arms
    }
    cells = []
    for number, (name, found) in enumerate(arms.items()):
        apart = gap(found, arms[NEW])
        size = small if name in (BEFORE, SAME) else large
        ahead = "" if name in (NEW, BEFORE) or apart is None else text(apart.words)
        mode = MODES.get(name) or OTHERS[name]
        first = shown(once[name]) if once[name] else ""
        cells.append([str(number), text(name), text(mode), times(size), first, cell(found), ahead])
    columns = ("row", "position table", "method", "#pixels", "#before fine-tuning", "#test", "#minus new table")
    numbers = {name: plain(found, before_finetuning=once[name]) for name, found in arms.items()}
    return Told(
        _answer(arms, once),
        [table(columns, cells), each(arms)],
        {"arms": numbers, "low_resolution": list(small), "full_resolution": list(large)},
    )


def _answer(arms: dict[str, list[Row]], once: dict[str, list[float]]) -> str:
    """Compare the paper's interpolation with a new table, so that none is picked for its luck."""
    rules = {name: middle(found) for name, found in arms.items() if name in RULES and scores(found)}
    apart, same = gap(arms[PAPER], arms[NEW]), gap(arms[PAPER], arms[SAME])
    if apart is None or same is None:
        return "Too few runs finished: some diverged."
    ahead = (
        "significantly better"
        if apart.clear and apart.mean > 0
        else "significantly worse"
        if apart.clear
        else "not significantly different"
    )
    said = (
        f"Fine-tuned at full resolution, the paper's interpolation reaches {middle(arms[PAPER]):.1%} and a new table "
        f"{middle(arms[NEW]):.1%}: it is {ahead} ({apart.words})"
    )
    if once[PAPER] and once[NEW]:
        said += f"; before fine-tuning, they have {mean(once[PAPER]):.1%} and {mean(once[NEW]):.1%}"
    within = 100 * (max(rules.values()) - min(rules.values()))
    return (
        f"{said}. The {len(rules)} interpolations are within {within:.1f} points of one another; the paper's minus fine-tuning "
        f"at low resolution is {same.words}{'' if same.clear else ', not significant'}."
    )


EXPERIMENT = Experiment(
    name="resolution",
    title="Section 3.2: fine-tuning at a higher resolution",
    paper="It is often beneficial to fine-tune at a higher resolution than in pre-training. Patches keep their size, the "
    "sequence grows, and the position embeddings are interpolated in 2-D by their position in the image: with the patch "
    "extraction the only points where 2-D structure is injected by hand (Dosovitskiy et al. 2021, 3.2; 224 pixels to 384). "
    "There is no comparison with alternatives, and no numbers for it.",
    scaled="A ViT with 0.2 million parameters and learned 1-D positions, trained on images downsampled by about 0.58, as 224 "
    "is of 384, then fine-tuned for a third of the steps at full resolution, keeping the classifier. Each interpolation is "
    "that of a library. A new table is randomly initialised.",
    limits="Pre-training and fine-tuning use the same images and classes; in the paper they do not. From 16 to 49 patches "
    "there is little to interpolate, and a new table of 49 rows is learned quickly.",
    tell=tell,
    trials=trials,
    measure=measure,
    looks=1500,
)
