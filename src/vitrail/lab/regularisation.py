"""``vitrail lab regularise``: dropout, stochastic depth, RandAugment, Mixup, CutMix and random erasing, alone and combined, on
less and on more data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vitrail.augment.policy import get_policy
from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult, group_by
from vitrail.lab.small_recipe import coarse_patch, dataset_name, dataset_shape, small_recipe, small_vit
from vitrail.lab.summaries import (
    difference_cell,
    join_clauses,
    join_names,
    mean_score,
    score_cell,
    scores_json,
    significant_arms,
)
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.plot.markup import escape
from vitrail.report.html import html_table


@dataclass(frozen=True)
class Arm:
    """Changes of the model and of the augmentation, in addition to one-pixel shifts and flips."""

    model: dict[str, Any] = field(default_factory=dict)
    augment: dict[str, Any] = field(default_factory=dict)


BASELINE, COMBINED = "baseline", "all combined"
SINGLE = {
    "dropout 0.1": Arm(model={"dropout": 0.1}),
    "stochastic depth 0.1": Arm(model={"stochastic_depth": 0.1}),
    "RandAugment 2, 10": Arm(augment={"randaug_layers": 2, "randaug_magnitude": 10.0}),
    "Mixup 0.2, half of the batches": Arm(augment={"mixup": 0.2, "mix_prob": 0.5}),
    "CutMix 1, half of the batches": Arm(augment={"cutmix": 1.0, "mix_prob": 0.5}),
    "erasing 0.25": Arm(augment={"erase_prob": 0.25}),
}
ARMS = {
    BASELINE: Arm(),
    **SINGLE,
    COMBINED: Arm(
        {name: value for arm in SINGLE.values() for name, value in arm.model.items()},
        {name: value for arm in SINGLE.values() for name, value in arm.augment.items()},
    ),
}
SUBSET_RATIO = 9  # times fewer images
QUICK = (BASELINE, "stochastic depth 0.1", COMBINED)


def subset_sizes(options: ExperimentOptions) -> tuple[int, int]:
    count = dataset_shape(dataset_name(options)).num_train
    return max(count // SUBSET_RATIO, 20 if options.quick else 100), count


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    return [
        TrainingJob(
            {"arm": name, "count": count, "seed": seed},
            small_recipe(
                options,
                small_vit(options, patch=coarse_patch(options), **ARMS[name].model),
                seed,
                evaluations=4,
                data=dataset_name(options, train_size=count, heldout_size=_heldout_size(options)),
                augment=get_policy("pad", pad=1, **ARMS[name].augment),
            ),
        )
        for seed in options.seeds
        for count in subset_sizes(options)
        for name in (QUICK if options.quick else ARMS)
    ]


def _heldout_size(options: ExperimentOptions) -> int | None:
    """Return the fixed size of validation and test for panes; other datasets keep theirs."""
    if options.quick or not options.data.startswith("panes") or "heldout_size=" in options.data:
        return None if not options.quick else 20
    return max(dataset_shape(options.data).num_train // 5, 1)


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    counts = sorted({row.condition["count"] for row in rows})
    groups = group_by(rows, "arm", "count")
    names = [name for name in ARMS if (name, counts[0]) in groups]
    cells = []
    for name in names:
        line = [escape(name)]
        for count in counts:
            line += [score_cell(groups[name, count]), difference_cell(groups[name, count], groups[BASELINE, count])]
        cells.append(line)
    columns = ["regularisation"]
    for count in counts:
        columns += [f"#{count:,} images", "#minus baseline"]
    numbers = [scores_json(group, arm=name, count=count) for (name, count), group in groups.items()]
    return ExperimentResult(_summary(groups, names, counts), [html_table(columns, cells)], {"arms": numbers, "counts": counts})


def _summary(groups: dict[tuple[Any, ...], list[JobResult]], names: list[str], counts: list[int]) -> str:
    clauses = []
    for count in counts:
        arms = {name: groups[name, count] for name in names}
        effects = [
            f"{join_names(found)} significantly {verb}{'s' if len(found) == 1 else ''}"
            for verb, sign in (("help", 1), ("hurt", -1))
            if (found := significant_arms(arms, arms[BASELINE], sign))
        ]
        baseline_score = mean_score(groups[BASELINE, count])
        clauses.append(
            f"with {count:,} images (baseline {baseline_score:.1%}), {' and '.join(effects) or 'none has a significant effect'}"
        )
    return join_clauses(clauses)


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
    build_result=build_result,
    jobs=jobs,
)
