"""``vitrail robustness``: the score of a model under common corruptions, for one model or several side by side."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.evaluate import numbered_progress
from vitrail.cli.options import (
    BatchOption,
    IgnoreOption,
    JsonOption,
    LabelsColumnOption,
    RunsAndDataArgument,
    SeparatorOption,
    SplitOption,
    TargetOption,
    check_output_file,
    column_options,
    parse_size,
)
from vitrail.cli.panels import corruptions_option, data_option, output_option
from vitrail.cli.run_recipe import DeviceOption, WorkersOption
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.evaluation.robustness import RobustnessDifference, RobustnessResult
    from vitrail.tasks.task import ImageScore


def robustness(
    runs_and_data: RunsAndDataArgument,
    split: SplitOption = None,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    ignore: IgnoreOption = None,
    out: Annotated[
        Path | None, output_option(metavar="FILE.html", help="Write an HTML page with plots and sample images.")
    ] = None,
    limit: Annotated[
        int | None, data_option(metavar="N", min=1, help="Number of images, sampled from the split; default: all.")
    ] = None,
    grid: Annotated[
        str | None,
        corruptions_option(
            metavar="ROWSxCOLUMNS", help="Grid of the cells that are dropped and shuffled; default: the first model's patches."
        ),
    ] = None,
    seed: Annotated[int, corruptions_option(help="Random seed of the corruptions and of the sample of --limit.")] = 0,
    batch: BatchOption = 64,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate robustness to noise, blur, low contrast, JPEG compression, and dropped or shuffled patches."""
    *runs, data = runs_and_data
    if not runs:
        raise VitrailError(
            f"robustness needs a model and a dataset, got {data!r} alone; try `vitrail robustness {data} fashion`"
        )
    cells = None if grid is None else parse_size(grid, "--grid")
    if out is not None:
        check_output_file(out, "--out", data, (".html",))

    from vitrail.data.sources.columns import choose_columns
    from vitrail.evaluation.leakage import open_for_evaluation
    from vitrail.evaluation.robustness import (
        check_models,
        common_grid,
        comparability_notes,
        compare_robustness,
        evaluate_robustness,
        require_image_scores,
    )
    from vitrail.inference.load import load_predictor
    from vitrail.system import select_device

    target_device, names, results = select_device(device), _short_names(runs), []
    with progress_bars() as on_progress:
        models = [require_image_scores(load_predictor(run, device="cpu")) for run in runs]
        columns = choose_columns(labels_column, separator, target, ignore)
        source = open_for_evaluation(data, models[0], on_progress, columns)
        shared = cells or common_grid(models)
        check_models(models, source, split, shared)
        for number, model in enumerate(models, 1):
            on_model_progress = numbered_progress(on_progress, number, len(runs))
            results.append(
                evaluate_robustness(
                    model.to(target_device), source, split, shared, limit, batch, workers, seed, on_model_progress
                )
            )
    results_by_name, differences_by_model = (
        dict(zip(names, results, strict=True)),
        [compare_robustness(results[0], other) for other in results[1:]],
    )
    notes = [
        f"{name}: {note}" for name, result in results_by_name.items() for note in result.notes if note not in results[0].notes
    ]
    notes += comparability_notes(dict(zip(names, models, strict=True)), shared)
    if out is not None:
        _write_page(out, results_by_name, notes)
    if json:
        print_json(_results_json(runs, results, differences_by_model, [*results[0].notes, *notes], out))
        return
    _print_results(results_by_name, differences_by_model, notes)
    if out is not None:
        typer.echo(f"page: {out}")


def _short_names(runs: list[str]) -> list[str]:
    """Return short unique names: without the common parent folders, numbered if a model is named twice."""
    parts = [run.rstrip("/").split("/") for run in runs]
    common = 0
    while len({tuple(path[: common + 1]) for path in parts}) == 1 and all(len(path) > common + 1 for path in parts):
        common += 1
    short = ["/".join(path[common:]) for path in parts] if len(runs) > 1 else runs
    return [name if name not in short[:index] else f"{name} ({index + 1})" for index, name in enumerate(short)]


def _write_page(out: Path, results_by_name: "dict[str, RobustnessResult]", notes: list[str]) -> None:
    from vitrail.io import atomic_write
    from vitrail.report.robustness_page import robustness_page

    atomic_write(out, robustness_page(results_by_name, notes).encode("utf-8", "replace"))


def _results_json(
    runs: list[str],
    results: "list[RobustnessResult]",
    differences: "list[dict[str, RobustnessDifference]]",
    notes: list[str],
    out: Path | None,
) -> dict[str, Any]:
    first = results[0]
    return {
        "data": first.dataset,
        "split": first.split,
        "images": len(first.indices),
        "unreadable_images": first.unreadable_images,
        "grid": first.grid,
        "models": [{"model": run, **_model_json(result)} for run, result in zip(runs, results, strict=True)],
        "paired": [
            {"first": runs[0], "other": run, **{name: asdict(result) for name, result in by_corruption.items()}}
            for run, by_corruption in zip(runs[1:], differences, strict=True)
        ],
        "notes": notes,
        "page": None if out is None else str(out),
    }


def _model_json(result: "RobustnessResult") -> dict[str, Any]:
    return {
        "clean": result.clean,
        "mean": result.mean,
        "retained": result.retained,
        "interval": {name: result.scores[name].interval for name in ("clean", "all")},
        "corruptions": {
            corruption.name: {
                "severities": list(range(1, len(corruption.strengths) + 1)),
                "strengths": corruption.strengths,
                "unit": corruption.unit,
                result.image_score.key: score.by_severity,
                "mean": score.mean,
                "interval": score.interval,
                "retained": score.retained,
            }
            for corruption, score in ((each, result.scores[each.name]) for each in result.corruptions)
        },
    }


def _print_results(
    results_by_name: "dict[str, RobustnessResult]", differences: "list[dict[str, RobustnessDifference]]", notes: list[str]
) -> None:
    from vitrail.evaluation.corruptions import MAX_SEVERITIES

    screen, first = make_console(), next(iter(results_by_name.values()))
    screen.print(
        f"{printable(first.dataset)}, {first.split}: {len(first.indices):,} images, cells of {first.grid[0]}x{first.grid[1]}"
        f", {first.image_score.title} at severities 1 to {MAX_SEVERITIES}"
        + (f"; {first.unreadable_images:,} left out as unreadable" if first.unreadable_images else ""),
        soft_wrap=True,
    )
    for note in (*first.notes, *notes):
        screen.print(f"  {printable(column_options(note))}", soft_wrap=True)
    measure, ratio = first.image_score, "of clean" if first.image_score.lower_is_better else "retained"
    severities = [str(number) for number in range(1, MAX_SEVERITIES + 1)]
    model_column, interval_column, difference_column = (
        (["model"], [], ["#difference"]) if differences else ([], ["#95 % CI"], [])
    )
    sheet = make_table(
        "corruption",
        *model_column,
        *(f"#{severity}" for severity in severities),
        "#mean",
        *interval_column,
        f"#{ratio}",
        *difference_column,
    )
    for name in first.scores:
        for number, (model, result) in enumerate(results_by_name.items()):
            score = result.scores[name]
            cells = [measure.format(value) for value in score.by_severity]
            cells += [""] * (len(severities) - len(score.by_severity))
            low, high = map(measure.format, score.interval)
            own = [printable(model)] if differences else []
            rest = [measure.format(score.mean), *([] if differences else [f"{low} to {high}"])]
            rest.append("" if name == "clean" else f"{score.retained:.1%}")
            rest += [_format_difference(differences[number - 1][name], measure) if number else ""] if differences else []
            add_row(sheet, "" if number else score.title, *own, *cells, *rest)
    screen.print(sheet)
    screen.print(f"{ratio}: mean {measure.title} as a fraction of the {measure.title} on clean images", soft_wrap=True)
    if differences:
        unit = " in percentage points," if measure.is_fraction else ""
        screen.print(f"difference: mean minus that of the first model,{unit} with its 95 % CI", soft_wrap=True)


def _format_difference(difference: "RobustnessDifference", measure: "ImageScore") -> str:
    low, high = map(measure.format_difference, difference.interval)
    return f"{measure.format_difference(difference.difference)} ({low} to {high})"
