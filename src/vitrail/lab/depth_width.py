"""``vitrail lab depth-width``: Figure 8, one dimension of a ViT changed at a time, accuracy against compute."""

from collections.abc import Sequence
from typing import Any

from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult, group_by
from vitrail.lab.small_recipe import dataset_name, dataset_shape, small_recipe, small_vit
from vitrail.lab.summaries import difference_cell, line_plot, mean_score, paired_difference, score_cell, scores_json
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.models.config import Pair, format_size
from vitrail.plot.markup import escape
from vitrail.report.html import html_table

BASE: dict[str, Any] = {"depth": 4, "width": 64, "mlp": 128}
BASE_NAME = "base"


def arms(size: Pair) -> dict[str, list[dict[str, Any]]]:
    """Return the models by changed dimension; patches are a half, a quarter and a seventh or eighth of the image wide."""
    coarse, medium, fine = ((14, 14), (7, 7), (4, 4)) if size == (28, 28) else tuple(
        (max(size[0] // part, 1), max(size[1] // part, 1)) for part in (2, 4, 8)
    )  # fmt: skip
    base = {**BASE, "patch": medium}
    return {
        BASE_NAME: [base],
        "depth": [{**base, "depth": depth} for depth in (1, 2, 8)],
        "width": [{**base, "width": width} for width in (32, 128)],
        "MLP": [{**base, "mlp": mlp} for mlp in (32, 512)],
        "patch": [{**base, "patch": patch} for patch in (coarse, fine)],
        "all": [{"depth": 2, "width": 48, "mlp": 96, "patch": coarse}, {"depth": 6, "width": 80, "mlp": 160, "patch": medium}],
    }


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    selected = arms(dataset_shape(dataset_name(options)).size)
    if options.quick:
        selected = {name: selected[name][:1] for name in (BASE_NAME, "depth", "patch")}
    return [
        TrainingJob(
            {"changed": name, "model": _model_text(changes), "seed": seed},
            small_recipe(options, small_vit(options, **changes), seed),
        )
        for seed in options.seeds
        for name, models in selected.items()
        for changes in models
    ]


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    groups = group_by(rows, "changed", "model")
    (base,) = [group for (name, _), group in groups.items() if name == BASE_NAME]
    lines: dict[str, dict[float, list[JobResult]]] = {}
    for (name, _), group in groups.items():
        if name != BASE_NAME:
            lines.setdefault(name, {base[0].macs / base[0].macs: base})[group[0].macs / base[0].macs] = group
    cells, numbers = [], []
    for (name, model), group in groups.items():
        relative_compute, ahead = group[0].macs / base[0].macs, difference_cell(group, base)
        cells.append(
            [escape(name), escape(model), f"{group[0].parameters:,}", f"{relative_compute:.2f}", score_cell(group), ahead]
        )
        numbers.append(scores_json(group, changed=name, model=model, compute=relative_compute, parameters=group[0].parameters))
    figure = line_plot(
        "Test accuracy by compute, one dimension at a time", "compute relative to the base", lines, lambda x: f"{x:.2g}"
    )
    columns = ("changed", "depth, width, MLP, patch", "#parameters", "#relative compute", "#test", "#minus the base")
    return ExperimentResult(_summary(base, groups), [figure, html_table(columns, cells)], {"models": numbers})


def _summary(base: list[JobResult], groups: dict[tuple[Any, ...], list[JobResult]]) -> str:
    larger = {
        f"{name} ({model})": (group, difference)
        for (name, model), group in groups.items()
        if name != BASE_NAME and group[0].macs > base[0].macs and (difference := paired_difference(group, base)) is not None
    }
    if not larger:
        return f"The base has {mean_score(base):.1%} on test; no larger model finished."
    by_validation = {name: mean_score(group, split="validation") for name, (group, _) in larger.items()}
    winner, worst = max(larger, key=by_validation.__getitem__), min(larger, key=by_validation.__getitem__)
    group, difference = larger[winner]
    adverb = "significantly" if difference.significant and difference.mean > 0 else "not significantly"
    return (
        f"Of the {len(larger)} models larger than the base ({mean_score(base):.1%} on test), {winner} is the best on "
        f"validation, and on test {adverb} better than the base: {difference.text} at "
        f"{group[0].macs / base[0].macs:.1f} times the compute; {worst} is the worst, {larger[worst][1].text}. In brackets: "
        "depth, width, MLP, patch."
    )


def _model_text(changes: dict[str, Any]) -> str:
    high, wide = changes["patch"]
    return (
        f"{changes['depth']}, {changes['width']}, {changes['mlp']}, {high if high == wide else format_size(changes['patch'])}"
    )


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
    build_result=build_result,
    jobs=jobs,
)
