"""``vitrail lab regularise``: dropout, stochastic depth, RandAugment, Mixup, CutMix and erasing, alone and together, on little
data and on more."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.augment.policy import policy
from vitrail.lab.base import coarse, data_of, recipe, seen, vit
from vitrail.lab.experiment import Asked, Experiment, Told, by
from vitrail.lab.show import cell, gap, middle, one_of, plain, sentence
from vitrail.lab.trial import Row, Trial
from vitrail.report.page import table, text


@dataclass(frozen=True)
class Arm:
    """What it changes in the model and in the augmentation, beside shifts by a pixel and mirror images."""

    model: dict[str, Any] = field(default_factory=dict)
    augment: dict[str, Any] = field(default_factory=dict)


NOTHING, ALL = "nothing", "all together"
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
LITTLE = 9  # times fewer pictures
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
    """Of panes as many for each amount; of others it is anyway."""
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
    columns = ["added to shifts and mirror images"]
    for count in counts:
        columns += [f"#{count:,} pictures", "#against nothing"]
    numbers = [plain(found, arm=name, count=count) for (name, count), found in groups.items()]
    return Told(_answer(groups, names, counts), [table(columns, cells)], {"arms": numbers, "counts": counts})


def _answer(groups: dict[tuple[Any, ...], list[Row]], names: list[str], counts: list[int]) -> str:
    said = []
    for count in counts:
        gaps = {name: gap(groups[name, count], groups[NOTHING, count]) for name in names if name != NOTHING}
        helps = [name for name, apart in gaps.items() if apart and apart.clear and apart.mean > 0]
        harms = [name for name, apart in gaps.items() if apart and apart.clear and apart.mean < 0]
        words = [
            f"{one_of(found)} clearly {what}{'s' if len(found) == 1 else ''}"
            for found, what in ((helps, "help"), (harms, "harm"))
            if found
        ]
        plain_ = middle(groups[NOTHING, count])
        said.append(
            f"with {count:,} pictures ({plain_:.1%} without any), {' and '.join(words) or 'none is clearly of use or harm'}"
        )
    return sentence(said)


EXPERIMENT = Experiment(
    name="regularise",
    title="Regularisation and augmentation, one at a time",
    paper="Strong regularisation is key where a model is trained from nothing on ImageNet: the paper tunes weight decay, "
    "dropout and label smoothing there (Dosovitskiy et al. 2021, 4.1, 4.3 and B.1), and uses dropout 0.1 for ImageNet "
    "and ImageNet-21k and none for JFT (Table 3). RandAugment, Mixup, CutMix, stochastic depth and erasing came to "
    "ViTs with DeiT (Touvron et al. 2021) and AugReg (Steiner et al. 2021). It has no table of them.",
    scaled="A ViT of 0.2 million weights and sixteen patches on small pictures, all of them and a ninth of them, in as many "
    "steps; three seeds. Together, half of the batches are mixed, by Mixup or by CutMix in turn at random.",
    limits="A short training sees each of many pictures a few times only, so that nothing is learnt by heart and "
    "regularisation mostly slows; its uses are for long trainings. RandAugment's colours say little on grey pictures, "
    "and its strengths are for photographs. Each is held against nothing at 95 %, so one of the fourteen may seem clear by "
    "chance.",
    tell=tell,
    trials=trials,
)
