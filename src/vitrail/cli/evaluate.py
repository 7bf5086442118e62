"""``vitrail evaluate``: accuracy, loss and calibration with confidence intervals; several models with a paired test."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.evaluation_rows import MAX_PRINTED_ROWS, format_value, print_rows
from vitrail.cli.options import (
    BatchOption,
    CompileOption,
    DropPatchesOption,
    IgnoreOption,
    ImageSizeOption,
    JsonOption,
    LabelsColumnOption,
    MergeTokensOption,
    RunsAndDataArgument,
    SeparatorOption,
    SplitOption,
    TargetOption,
    TTAOption,
    column_options,
    select_speedups,
    warn_about_compiling,
)
from vitrail.cli.run_recipe import DeviceOption, WorkersOption
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.data.sources.dataset import DatasetSplits
    from vitrail.evaluation.classification import ClassificationEvaluation, PairedComparison
    from vitrail.evaluation.resampled import ResampledEvaluation
    from vitrail.evaluation.split_runner import Evaluation
    from vitrail.inference.predictor import Predictor

MAX_JSON_CLASSES = 100  # classes of a confusion matrix in JSON
METRIC_TITLES = {"top1": "top-1", "top5": "top-5", "nll": "NLL", "ece": "ECE"}


def evaluate(
    runs_and_data: RunsAndDataArgument,
    split: SplitOption = None,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    ignore: IgnoreOption = None,
    tta: TTAOption = None,
    batch: BatchOption = 64,
    compile: CompileOption = False,
    merge_tokens: MergeTokensOption = None,
    drop_patches: DropPatchesOption = 0.0,
    image: ImageSizeOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate and compare models on a labelled dataset: accuracy, NLL and ECE with confidence intervals."""
    *runs, data = runs_and_data
    if not runs:
        raise VitrailError(f"evaluate needs a model and a dataset, got {data!r} alone; try `vitrail evaluate {data} fashion`")

    from vitrail.data.sources.columns import choose_columns
    from vitrail.evaluation.classification import ClassificationEvaluation, compare_paired
    from vitrail.evaluation.evaluate import evaluate
    from vitrail.evaluation.leakage import open_for_evaluation
    from vitrail.evaluation.resampled import ResampledEvaluation
    from vitrail.inference.load import load_predictor
    from vitrail.system import select_device

    target_device, results = select_device(device), []
    speedups = select_speedups(compile, merge_tokens, drop_patches, image, target_device.type)
    # all of them, so that a wrong name is reported before the work
    predictors = [load_predictor(run, speedups=speedups, device="cpu") for run in runs]
    warn_about_compiling(speedups)
    with progress_bars() as on_progress:
        columns = choose_columns(labels_column, separator, target, ignore)
        source = open_for_evaluation(data, predictors[0], on_progress, columns)
        for run, predictor in zip(runs, predictors, strict=True):
            _check_model(run if len(runs) > 1 else "", predictor, source, split)
        for number, predictor in enumerate(predictors, 1):
            on_model_progress = numbered_progress(on_progress, number, len(runs))
            results.append(evaluate(predictor.to(target_device), source, split, tta, batch, workers, on_model_progress))
            predictor.to(select_device("cpu"))
    if all(
        isinstance(result, ResampledEvaluation) and result.bootstrap.keys() == results[0].bootstrap.keys() for result in results
    ):
        _report_resampled(runs, predictors, results, tta, json)
        return
    if not all(isinstance(result, ClassificationEvaluation) for result in results):
        _report_metrics(runs, predictors, results, json)
        return
    pairs = [compare_paired(results[0], other) for other in results[1:]]
    if json:
        run_results = [{"model": run, "tta": tta, **_result_json(result)} for run, result in zip(runs, results, strict=True)]
        paired = [{"first": runs[0], "other": run, **asdict(pair)} for run, pair in zip(runs[1:], pairs, strict=True)]
        print_json(run_results[0] if len(runs) == 1 else {"runs": run_results, "paired": paired})
    elif len(runs) == 1:
        _print_result(results[0])
    else:
        _print_comparison(runs, results, pairs)


def _check_model(run: str, predictor: "Predictor", source: "DatasetSplits", split: str | None) -> None:
    """Raise unless the model can be evaluated on this dataset; of several models, name the one that cannot."""
    from vitrail.evaluation.label_matching import match_targets, select_split
    from vitrail.inference.predictor import require_outputs

    try:
        task = require_outputs(predictor).task
        _, images = select_split(source, split, task.config.labelled)
        match_targets(images, predictor, source.name)
    except VitrailError as error:
        raise VitrailError(f"{run}: {error}" if run else str(error)) from None


def _report_metrics(runs: list[str], predictors: "list[Predictor]", results: "list[Evaluation]", json: bool) -> None:
    """Report the metrics of models that are not all classifiers."""
    if json:
        rows = [{"model": run, **_base_json(result), **result.metrics} for run, result in zip(runs, results, strict=True)]
        print_json(rows[0] if len(rows) == 1 else {"runs": rows})
        return
    for run, predictor, result in zip(runs, predictors, results, strict=True):
        _print_header(result, f", model {printable(run)}" if len(runs) > 1 else "")
        table = make_table("metric", "#value")
        for name, value in result.metrics.items():
            add_row(table, name, f"{value:.2%}" if name in predictor.task.fractions else f"{value:.4g}")
        make_console().print(table)


def _report_resampled(
    runs: list[str], predictors: "list[Predictor]", results: "list[ResampledEvaluation]", tta: str | None, json: bool
) -> None:
    """Report metrics with intervals, and compare the other models with the first."""
    from vitrail.evaluation.resampled import compare_resampled

    pairs = [compare_resampled(results[0], other) for other in results[1:]]
    if json:
        rows = [
            {"model": run, "tta": tta, **_base_json(result), **result.metrics, "interval": result.intervals, **result.details}
            for run, result in zip(runs, results, strict=True)
        ]
        paired = [
            {"first": runs[0], "other": run, **{name: asdict(each) for name, each in pair.items()}}
            for run, pair in zip(runs[1:], pairs, strict=True)
        ]
        print_json(rows[0] if len(rows) == 1 else {"runs": rows, "paired": paired})
        return
    task = predictors[0].task
    fractions = task.fractions
    for run, result in zip(runs, results, strict=True):
        _print_header(result, f", model {printable(run)}" if len(runs) > 1 else "")
        table = make_table("metric", "#value", "#95 % CI")
        for name, value in result.metrics.items():
            low_high = result.intervals.get(name)
            ends = "" if low_high is None else " to ".join(format_value(end, name in fractions) for end in low_high)
            add_row(table, task.metric_titles.get(name, name), format_value(value, name in fractions), ends)
        make_console().print(table)
        print_rows(result.details)
    for run, pair in zip(runs[1:], pairs, strict=True):
        table = make_table("metric", "#difference", "#95 % CI", "#p", title=f"{printable(run)} minus {printable(runs[0])}")
        for name, each in pair.items():
            ends = " to ".join(format_value(end, name in fractions, signed=True) for end in each.interval)
            add_row(
                table,
                task.metric_titles.get(name, name),
                format_value(each.difference, name in fractions, signed=True),
                ends,
                f"{each.p:.2g}",
            )
        make_console().print(table)


def numbered_progress(on_progress: Any, number: int, total: int) -> Any:
    """Add which of several models is running to the progress message."""
    return (
        on_progress
        if total == 1
        else lambda task, done, total_steps: on_progress(f"{task} ({number} of {total})", done, total_steps)
    )


def _result_json(result: "ClassificationEvaluation") -> dict[str, Any]:
    from vitrail.evaluation.per_class import confusion_matrix, most_confused

    present, answers = result.per_class.present.tolist(), result.predictions
    show_matrix = len(present) <= MAX_JSON_CLASSES and len(result.class_names) <= 10 * MAX_JSON_CLASSES
    matrix = (
        confusion_matrix(answers.predicted, answers.labels, len(result.class_names))[present][:, present].tolist()
        if show_matrix
        else None
    )
    return {
        **_base_json(result),
        **result.metrics,
        "interval": result.intervals,
        "macro": result.per_class.macro_average(),
        "temperature_scaling": asdict(result.temperature_scaling) if result.temperature_scaling else None,
        "classes": [_class_json(result, number) for number in present],
        "confusion": matrix,
        "confused": [
            {"label": result.class_names[label], "predicted": result.class_names[predicted], "count": count}
            for label, predicted, count in most_confused(answers.predicted, answers.labels)[:MAX_JSON_CLASSES]
        ],
        "reliability": {name: values.tolist() for name, values in vars(result.reliability).items()},
    }


def _base_json(result: "Evaluation") -> dict[str, Any]:
    return {
        "data": result.dataset,
        "split": result.split,
        "images": result.num_images,
        "unreadable_images": result.unreadable_images,
        "notes": result.notes,
    }


def _class_json(result: "ClassificationEvaluation", number: int) -> dict[str, Any]:
    per_class = result.per_class
    return {
        "name": result.class_names[number],
        "images": int(per_class.support[number]),
        **{name: getattr(per_class, name)[number].item() for name in ("precision", "recall", "f1")},
    }


def _print_result(result: "ClassificationEvaluation") -> None:
    screen = make_console()
    _print_header(result, _count_classes(result))
    sheet = make_table("metric", "#value", "#95 % CI")
    for name in _printed_metrics(result):
        add_row(
            sheet,
            METRIC_TITLES[name],
            _format_metric(name, getattr(result, name)),
            _format_interval(name, result.intervals[name]),
        )
    for name, value in result.per_class.macro_average().items():
        add_row(sheet, f"macro {name if name != 'f1' else 'F1'}", f"{value:.2%}", "")
    if result.temperature_scaling is not None:
        scaled = result.temperature_scaling
        title = f"with temperature {scaled.temperature:.3f}, fitted on {scaled.num_fit_images:,} validation images"
        add_row(sheet, f"NLL {title}", f"{scaled.nll:.4f}", "")
        add_row(sheet, "ECE with that temperature", f"{scaled.ece:.2%}", "")
    screen.print(sheet)
    _print_classes(result)


def _print_header(result: "Evaluation", classes: str = "") -> None:
    screen = make_console()
    screen.print(
        f"{printable(result.dataset)}, {result.split}: {result.num_images:,} images{classes}"
        + (f"; {result.unreadable_images:,} left out as unreadable" if result.unreadable_images else ""),
        soft_wrap=True,
    )
    for note in result.notes:
        screen.print(f"  {printable(column_options(note))}", soft_wrap=True)


def _count_classes(result: "ClassificationEvaluation") -> str:
    classes = int((result.per_class.support > 0).sum())
    return f", {classes:,} classes" + (
        "" if classes == len(result.class_names) else f" of the model's {len(result.class_names):,}"
    )


def _print_classes(result: "ClassificationEvaluation") -> None:
    from vitrail.evaluation.per_class import most_confused

    screen, per_class = make_console(), result.per_class
    present = [number for number in per_class.present.tolist() if per_class.support[number]]
    lowest = sorted(present, key=lambda number: per_class.f1[number].item())[:MAX_PRINTED_ROWS]
    sheet = make_table("class", "#images", "#recall", "#precision", "#F1", title="Classes of lowest F1")
    for number in lowest if len(present) > 1 else ():
        scores = (f"{values[number].item():.1%}" for values in (per_class.recall, per_class.precision, per_class.f1))
        add_row(sheet, printable(result.class_names[number]), f"{int(per_class.support[number]):,}", *scores)
    pairs = most_confused(result.predictions.predicted, result.predictions.labels)[:MAX_PRINTED_ROWS]
    confusions = make_table("class", "predicted as", "#count", title="Most confused classes")
    for label, predicted, count in pairs:
        add_row(confusions, printable(result.class_names[label]), printable(result.class_names[predicted]), f"{count:,}")
    for printed in (sheet, confusions):
        if printed.row_count:
            screen.print(printed)


def _print_comparison(runs: list[str], results: "list[ClassificationEvaluation]", pairs: "list[PairedComparison]") -> None:
    screen = make_console()
    _print_header(results[0], _count_classes(results[0]))
    for run, result in zip(runs[1:], results[1:], strict=True):
        for note in result.notes:
            if note not in results[0].notes:
                screen.print(f"  {printable(run)}: {printable(note)}", soft_wrap=True)
    names = _printed_metrics(results[0])
    sheet = make_table("model", *(f"#{METRIC_TITLES[name]}" for name in names))
    for run, result in zip(runs, results, strict=True):
        add_row(
            sheet,
            printable(run),
            *(
                f"{_format_metric(name, getattr(result, name))}\n{_format_interval(name, result.intervals[name])}"
                for name in names
            ),
        )
    screen.print(sheet)
    rows = make_table(
        "model",
        *(f"#{METRIC_TITLES[name]}" for name in names),
        "#only it correct",
        "#p",
        title=f"Difference from {printable(runs[0])}",
    )
    for run, pair in zip(runs[1:], pairs, strict=True):
        cells = (
            f"{_format_metric(name, pair.difference[name], True)}\n{_format_interval(name, pair.intervals[name], True)}"
            for name in names
        )
        add_row(rows, printable(run), *cells, f"{pair.only_other:,} to {pair.only_first:,}", f"{pair.p:.2g}")
    screen.print(rows)
    screen.print("accuracies and ECE: in percentage points; NLL: in nats", soft_wrap=True)
    screen.print("p: McNemar's exact test on top-1; how often two equally good models would differ this much", soft_wrap=True)


def _printed_metrics(result: "ClassificationEvaluation") -> list[str]:
    """List the metrics to print; with five classes or fewer, top-5 is always correct."""
    return [name for name in METRIC_TITLES if name != "top5" or len(result.class_names) > 5]


def _format_metric(name: str, value: float, signed: bool = False) -> str:
    if name == "nll":
        return f"{value:+.4f}" if signed else f"{value:.4f}"
    return f"{100 * value:+.2f}" if signed else f"{value:.2%}"


def _format_interval(name: str, ends: tuple[float, float], signed: bool = False) -> str:
    low, high = (_format_metric(name, end, signed) for end in ends)
    return f"{low} to {high}"
