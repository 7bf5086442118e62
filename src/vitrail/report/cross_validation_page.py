"""Report of a cross-validation (``report.html``): the scores of each fold, their mean and its interval, and what to do next."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from vitrail.config import to_json
from vitrail.plot.markup import escape
from vitrail.recipes.recipe import Recipe
from vitrail.report.html import html_page, html_table
from vitrail.report.run_page import escape_lines
from vitrail.report.task_section import RunReport, task_section
from vitrail.training.cross_validation import BASELINE_TITLES, CrossValidation
from vitrail.training.run import Run
from vitrail.weights.model_folder import read_metadata


def cross_validation_page(validated: CrossValidation) -> str:
    """Return the page of a finished cross-validation."""
    return html_page(f"Cross-validation {validated.folder.name}", _sections(validated))


def _sections(validated: CrossValidation) -> Iterator[str]:
    report = RunReport(validated.run, validated.run.recipe(), validated.result)
    run, recipe, result, task = report.run, report.recipe, report.result, report.task
    count = len(result["folds"])
    yield f"<h1>{escape(run.folder.name)}</h1>"
    yield (f'<p class="soft">cross-validation with {count} folds, recipe {escape(recipe.name)} on {escape(recipe.data)}</p>')
    name = task.primary_metric
    caption = f"{_title(report, name)}, mean of the folds, 95 % interval {_interval(report, name, result['intervals'][name])}"
    yield (f'<p class="headline">{report.format_metric(name, result["mean"][name])} <span class="soft">{caption}</span></p>')
    yield "<h2>Folds</h2>"
    yield (
        "<p>Each fold is the test split of one run, which trains on the others and selects its weights on a part of them. So "
        "every image is predicted by a model that was neither trained nor selected on it.</p>"
    )
    yield _fold_table(report)
    yield (
        '<p class="soft">The interval of the mean is that of Student&rsquo;s t over the folds. The runs share training images, '
        "so it is approximate, and rather too narrow.</p>"
    )
    yield from _pooled(report)
    predictions = validated.load_predictions()
    if predictions:
        yield from task_section(task).out_of_fold(report, predictions, _class_names(run))
    yield from _next_steps(run, recipe, result)


def _fold_table(report: RunReport) -> str:
    result = report.result
    names = [name for name in result["mean"] if name != "top5" or report.recipe.model.classes > 5]  # else always correct
    columns = ("fold", "#training images", "#test images", *(f"#{_title(report, name)}" for name in names), "#best step")
    rows = [
        (
            f'<a href="fold-{number}/report.html">{number}</a>',
            f"{fold['images']['train']:,}",
            f"{fold['images']['test']:,}",
            *(report.format_metric(name, fold["metrics"][name]) for name in names),
            f"{fold['best']['step']:,}",
        )
        for number, fold in enumerate(result["folds"], 1)
    ]
    mean = [f"<b>{report.format_metric(name, result['mean'][name])}</b>" for name in names]
    interval = [_interval(report, name, result["intervals"][name]) for name in names]
    return html_table(columns, [*rows, ("<b>mean</b>", "", "", *mean, ""), ("95 % interval", "", "", *interval, "")])


def _pooled(report: RunReport) -> Iterator[str]:
    """Show the scores of all predictions together."""
    pooled: dict[str, Any] | None = report.result.get("pooled")
    if pooled is None:
        return
    yield "<h2>All predictions together</h2>"
    yield (
        f'<p><a href="out_of_fold.csv">out_of_fold.csv</a> has a row for each of the {pooled["images"]:,} images: its label, '
        "its fold and its prediction. The metrics of all predictions, with intervals by bootstrap over the images:</p>"
    )
    rows = [
        (
            escape(_title(report, name)),
            report.format_metric(name, value),
            _interval(report, name, pooled["intervals"][name]) if name in pooled["intervals"] else "",
        )
        for name, value in pooled.items()
        if name in report.result["mean"] and (name != "top5" or report.recipe.model.classes > 5)
    ]
    baselines = {title: report.result[name] for name, title in BASELINE_TITLES.items() if name in report.result}
    rows += [(title, f"{value:.2%}", "") for title, value in baselines.items()]
    yield html_table(("metric", "#value", "#95 % interval"), rows)


def _next_steps(run: Run, recipe: Recipe, result: dict[str, Any]) -> Iterator[str]:
    plan, options = run.fold_plan(), ""
    if plan is not None and plan.minutes is not None:
        options += f" --minutes {plan.minutes / plan.folds:g}"
    if plan is not None and plan.find_lr:
        options += " --find-lr"
    yield "<h2>A model to use</h2>"
    yield (
        "<p>The folds measure how well the recipe does on new images; none of their models is meant to be used. A last run of "
        "the same recipe on the whole dataset, without folds, trains the one to use:</p>"
    )
    yield f"<pre>vitrail train --recipe-from {escape(shlex.quote(str(run.folder)))}{options}</pre>"
    yield (
        "<p><code>--set test_fraction=0</code> holds no images out for testing unless the dataset has a test split of its own: "
        "the folds have tested the recipe already.</p>"
    )
    rows = [(escape(name), escape(json.dumps(value))) for name, value in result.items() if not isinstance(value, dict | list)]
    yield html_table(("result", "value"), rows)
    yield f"<details><summary>Complete recipe</summary><pre>{escape_lines(to_json(recipe))}</pre></details>"


def _class_names(run: Run) -> tuple[str, ...]:
    return tuple(read_metadata(run.folder / "fold-1" / "best").get("class_names") or ())


def _title(report: RunReport, name: str) -> str:
    titles = {"top1": "top-1", "top5": "top-5", **report.task.metric_titles}
    return titles.get(name, name.replace("_", " "))


def _interval(report: RunReport, name: str, interval: list[float]) -> str:
    low, high = (report.format_metric(name, value) for value in interval)
    return f"{low} to {high}"
