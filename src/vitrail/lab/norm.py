"""``vitrail lab norm``: pre-norm (equations 2 and 3) against post-norm, with warm-up and without."""

from collections.abc import Sequence
from dataclasses import replace

from vitrail.lab.base import ADAMW, STEPS, coarse, recipe, vit
from vitrail.lab.experiment import Asked, Experiment, Told, by
from vitrail.lab.show import best, cell, gap, middle, over, plain, sentence
from vitrail.lab.trial import Row, Trial
from vitrail.report.markup import text
from vitrail.report.page import table
from vitrail.train.recipe import Schedule

NORMS = ("pre", "post")
WARMUPS = {"warm-up": STEPS // 10, "no warm-up": 0}
RATES = (1e-3, 3e-3, 1e-2)
DEPTH = 8  # pre-norm matters more in deeper models


def trials(asked: Asked) -> list[Trial]:
    return [
        Trial(
            {"norm": norm, "warmup": words, "lr": lr, "seed": seed},
            recipe(
                asked, vit(asked, norm=norm, depth=2 if asked.quick else DEPTH, patch=coarse(asked)), seed,
                replace(ADAMW, lr=lr), schedule=Schedule(warmup=warmup),
            ),
        )
        for seed in asked.seeds
        for lr in (RATES[1:2] if asked.quick else RATES)
        for norm in NORMS
        for words, warmup in WARMUPS.items()
    ]  # fmt: skip


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    lines = {
        f"{norm}, {words}": {lr: found for (lr,), found in by(own, "lr").items()}
        for (norm, words), own in by(rows, "norm", "warmup").items()
    }
    rates = list(next(iter(lines.values())))
    chosen = {name: best(line) for name, line in lines.items()}
    cells = [
        [text(name), *(cell(line[lr]) for lr in rates), "" if chosen[name] is None else f"{chosen[name]:g}"]
        for name, line in lines.items()
    ]
    drawing = over("Test accuracy by learning rate", "learning rate", lines, lambda lr: f"{lr:g}")
    numbers = {name: {f"{lr:g}": plain(found) for lr, found in line.items()} for name, line in lines.items()}
    return Told(
        _answer(lines, chosen),
        [drawing, table(("norm", *(f"#lr {lr:g}" for lr in rates), "#lr selected on validation"), cells)],
        {"arms": numbers, "best": chosen},
    )


def _answer(lines: dict[str, dict[float, list[Row]]], chosen: dict[str, float | None]) -> str:
    said = []
    for words in WARMUPS:
        pre, post = (f"{norm}, {words}" for norm in NORMS)
        ours, theirs = chosen[pre], chosen[post]
        if ours is None or theirs is None:
            lost = [norm for norm, lr in zip(NORMS, (ours, theirs), strict=True) if lr is None]
            who = "both" if len(lost) == 2 else f"{lost[0]}-norm"
            said.append(f"with {words}, {who} diverged at every learning rate")
            continue
        apart = gap(lines[pre][ours], lines[post][theirs])
        numbers = f"pre {middle(lines[pre][ours]):.1%}, post {middle(lines[post][theirs]):.1%}"
        if apart is None or not apart.clear:
            said.append(f"with {words}, the difference at their best learning rates is not significant ({numbers})")
        else:
            ahead = "pre" if apart.mean > 0 else "post"
            said.append(f"with {words}, {ahead}-norm is significantly better at its best learning rate ({numbers})")
    gone = [name for name, line in lines.items() if any(row.failed for found in line.values() for row in found)]
    told = sentence(said).replace("with no warm-up", "without warm-up")
    return f"{told} Some runs of {len(gone)} arms diverged." if gone else told


EXPERIMENT = Experiment(
    name="norm",
    title="Equations 2 and 3: pre-norm or post-norm",
    paper="Layer norm is applied before every block and residual connections after it, as in later Transformers (Wang et "
    "al. 2019; Baevski and Auli 2019), and pre-training warms up over 10,000 steps. The paper "
    "(Dosovitskiy et al. 2021, 3.1 and Table 3) ablates neither, and has no numbers for it.",
    scaled=f"A ViT with {DEPTH} layers, width 64 and sixteen patches, AdamW with gradient clipping at 1, three learning rates, "
    "three seeds.",
    limits=f"{DEPTH} layers are few: post-norm without warm-up is known to fail with more of them and with higher learning "
    "rates, and clipping keeps some runs from diverging. That it works here says nothing about 24 layers.",
    tell=tell,
    trials=trials,
)
