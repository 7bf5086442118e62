"""``vitrail lab regularise``: dropout, stochastic depth, RandAugment, Mixup, CutMix and random erasing, alone and combined, on
less and on more data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.augment.policy import policy
from vitrail.lab.base import coarse, data_of, recipe, seen, vit
from vitrail.lab.experiment import Asked, Experiment, Told, by
from vitrail.lab.show import cell, gap, middle, one_of, plain, sentence
from vitrail.lab.trial import Row, Trial
from vitrail.report.markup import text
from vitrail.report.page import table


@dataclass(frozen=True)
class Arm:
    """Changes of the model and of the augmentation, in addition to one-pixel shifts and flips."""

    model: dict[str, Any] = field(default_factory=dict)
    augment: dict[str, Any] = field(default_factory=dict)


NOTHING, ALL = "baseline", "all combined"
ALONE = {
    "dropout 0.1": Arm(model={"dropout": 0.1}),
    "stochastic depth 0.1": Arm(model={"stochastic_depth": 0.1}),
    "RandAugment 2, 10": Arm(augment={"layers": 2, "magnitude": 10.0}),
    "Mixup 0.2, half of the batches": Arm(augment={"mixup": 0.2, "mix": 0.5}),
    "CutMix 1, half of the batches": Arm(augment={"cutmix": 1.0, "mix": 0.5}),
    "erasing 0.25": Arm(augment={"erase": 0.25}),
}
ARMS = {
    NOTHING: Arm(),
    **ALONE,
    ALL: Arm(
        {name: value for arm in ALONE.values() for name, value in arm.model.items()},
        {name: value for arm in ALONE.values() for name, value in arm.augment.items()},
    ),
}
LITTLE = 9  # times fewer images
QUICK = (NOTHING, "stochastic depth 0.1", ALL)


def amounts(asked: Asked) -> tuple[int, int]:
    count = seen(data_of(asked)).count
    return max(count // LITTLE, 20 if asked.quick else 100), count


def trials(asked: Asked) -> list[Trial]:
    return [
        Trial(
            {"arm": name, "count": count, "seed": seed},
            recipe(
                asked, vit(asked, patch=coarse(asked), **ARMS[name].model), seed, looks=4,
                data=data_of(asked, count=count, held=_held(asked)), augment=policy("pad", pad=1, **ARMS[name].augment),
            ),
        )
        for seed in asked.seeds
        for count in amounts(asked)
        for name in (QUICK if asked.quick else ARMS)
    ]  # fmt: skip


def _held(asked: Asked) -> int | None:
    """Return the fixed size of validation and test for panes; other datasets keep theirs."""
    if asked.quick or not asked.data.startswith("panes") or "held=" in asked.data:
        return None if not asked.quick else 20
    return max(seen(asked.data).count // 5, 1)


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    counts = sorted({row.of["count"] for row in rows})
    groups = by(rows, "arm", "count")
    names = [name for name in ARMS if (name, counts[0]) in groups]
    cells = []
    for name in names:
        line = [text(name)]
        for count in counts:
            apart = gap(groups[name, count], groups[NOTHING, count])
            line += [cell(groups[name, count]), "" if name == NOTHING or apart is None else text(apart.words)]
        cells.append(line)
    columns = ["regularisation"]
    for count in counts:
        columns += [f"#{count:,} images", "#minus baseline"]
    numbers = [plain(found, arm=name, count=count) for (name, count), found in groups.items()]
    return Told(_answer(groups, names, counts), [table(columns, cells)], {"arms": numbers, "counts": counts})


def _answer(groups: dict[tuple[Any, ...], list[Row]], names: list[str], counts: list[int]) -> str:
    said = []
    for count in counts:
        gaps = {name: gap(groups[name, count], groups[NOTHING, count]) for name in names if name != NOTHING}
        helps = [name for name, apart in gaps.items() if apart and apart.clear and apart.mean > 0]
        harms = [name for name, apart in gaps.items() if apart and apart.clear and apart.mean < 0]
        words = [
            f"{one_of(found)} significantly {what}{'s' if len(found) == 1 else ''}"
            for found, what in ((helps, "help"), (harms, "hurt"))
            if found
        ]
        plain_ = middle(groups[NOTHING, count])
        said.append(f"with {count:,} images (baseline {plain_:.1%}), {' and '.join(words) or 'none has a significant effect'}")
    return sentence(said)


EXPERIMENT = Experiment(
    name="regularise",
    title="Regularisation and augmentation, one at a time",
    paper="Strong regularisation is key when training from scratch on ImageNet: the paper tunes weight decay, "
    "dropout and label smoothing there (Dosovitskiy et al. 2021, 4.1, 4.3 and B.1), and uses dropout 0.1 for ImageNet "
    "and ImageNet-21k and none for JFT (Table 3). RandAugment, Mixup, CutMix, stochastic depth and erasing came to "
    "ViTs with DeiT (Touvron et al. 2021) and AugReg (Steiner et al. 2021). The paper has no table of them.",
    scaled="A ViT with 0.2 million parameters and sixteen patches on small images, all of them and a ninth of them, for the "
    "same number of steps; three seeds. Combined, half of the batches are mixed, by Mixup or CutMix at random.",
    limits="A short run sees each of many images only a few times, so it hardly overfits and regularisation mostly slows it "
    "down; it pays off in long runs. RandAugment's colour operations do little on grey images, and its magnitudes are for "
    "photographs. Each is tested against the baseline at 95 %, so one of the fourteen may seem significant by chance.",
    tell=tell,
    trials=trials,
)
