"""``vitrail probe``: quality of frozen features, before any fine-tuning."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.cli.console import add_row, make_console, make_table, print_json, progress_bars
from vitrail.cli.options import (
    BatchOption,
    IgnoreOption,
    JsonOption,
    LabelsColumnOption,
    ModelArgument,
    SeparatorOption,
    TargetOption,
    column_options,
)
from vitrail.cli.panels import data_option, run_option
from vitrail.cli.run_recipe import DeviceOption, WorkersOption
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.data.sources.columns import Columns
    from vitrail.data.sources.dataset import DatasetSplits
    from vitrail.evaluation.probe import ProbeResult, SuiteEntry
    from vitrail.inference.predictor import Predictor

MAX_PRINTED_CLASSES = 20


def probe(
    model: ModelArgument,
    source: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Dataset: a folder, a file, or a name such as fashion or cifar10.")
    ] = None,
    suite: Annotated[
        Path | None, data_option(metavar="FILE.toml", help="File that lists several datasets, instead of one.")
    ] = None,
    labels_column: LabelsColumnOption = None,
    separator: SeparatorOption = None,
    target: TargetOption = None,
    ignore: IgnoreOption = None,
    task: Annotated[
        Literal["segment"] | None, data_option(help="segment: probe masks, also of a dataset that has labels too.")
    ] = None,
    protocol: Annotated[
        list[str] | None, run_option(metavar="NAME", help="Protocol to run: fewshot, knn or linear; repeatable, default: all.")
    ] = None,
    batch: BatchOption = 64,
    device: DeviceOption = "auto",
    workers: WorkersOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate frozen features by few-shot, k-nearest-neighbour and linear probes."""
    if (source is None) == (suite is None):
        raise VitrailError("name one dataset or one suite: vitrail probe MODEL DATA, or vitrail probe MODEL --suite FILE.toml")

    from vitrail.data.sources.columns import ANY_COLUMNS, choose_columns
    from vitrail.evaluation.probe import PROTOCOLS, SuiteEntry, check_protocols, load_suite
    from vitrail.evaluation.probe import probe as run_probe
    from vitrail.inference.load import load_predictor

    chosen = choose_columns(labels_column, separator, target, ignore)
    chosen = replace(chosen, masks=True) if task == "segment" else chosen
    columns = None if chosen == ANY_COLUMNS else chosen
    protocols = check_protocols(protocol or PROTOCOLS)
    entries = (
        (SuiteEntry(str(source), str(source), "", protocols),)
        if suite is None
        else _restrict_protocols(load_suite(suite), protocols)
    )
    predictor = load_predictor(model, device=device)
    results = []
    with progress_bars() as on_progress:
        datasets = [
            _open_dataset(entry, predictor, on_progress, suite, columns) for entry in entries
        ]  # so that a missing dataset is reported before the work
    for entry, data in zip(entries, datasets, strict=True):
        with progress_bars() as on_progress:
            results.append(run_probe(predictor, data, entry.protocols, batch, workers, on_progress))
    if suite is None:
        print_json({"model": model, **asdict(results[0])}) if json else _print_result(model, results[0])
    else:
        _print_suite(model, suite, entries, results, json)


def _open_dataset(
    entry: "SuiteEntry", predictor: "Predictor", on_progress: Any, suite: Path | None, columns: "Columns | None"
) -> "DatasetSplits":
    from vitrail.evaluation.leakage import open_like_training
    from vitrail.evaluation.probe import select_eval_split

    try:
        data = open_like_training(entry.source, predictor, on_progress, columns=columns)
        select_eval_split(data, entry.protocols)
    except VitrailError as error:
        raise VitrailError(str(error) if suite is None else f"{entry.name} of {suite}: {error}") from None
    return data


def _restrict_protocols(entries: "tuple[SuiteEntry, ...]", protocols_wanted: tuple[str, ...]) -> "tuple[SuiteEntry, ...]":
    """Restrict each dataset to the requested protocols, and drop those left with none."""
    from dataclasses import replace

    restricted = [
        replace(entry, protocols=tuple(name for name in entry.protocols if name in protocols_wanted)) for entry in entries
    ]
    if not any(entry.protocols for entry in restricted):
        raise VitrailError(f"no dataset of the suite uses {' or '.join(protocols_wanted)}; change --protocol")
    return tuple(entry for entry in restricted if entry.protocols)


def _print_result(model: str, result: "ProbeResult") -> None:
    from vitrail.evaluation.linear_probe import LabelProbeResult, LinearProbeResult

    screen = make_console()
    if result.metric == "r2":
        _print_ridge(model, result)
        return
    if result.metric == "miou":
        _print_masks(model, result)
        return
    sheet = make_table(
        "protocol",
        "setting",
        "#accuracy" if result.metric == "accuracy" else "#mAP",
        "#std",
        title=printable(f"{model} on {result.dataset}: {result.eval_split}"),
    )
    for shots in result.fewshot or ():
        add_row(sheet, "few-shot", f"{shots.shots} shots per class", f"{shots.accuracy:.2%}", f"± {shots.std:.2%}")
    for neighbours, accuracy in (result.knn or {}).items():
        add_row(sheet, "k-NN", f"k = {neighbours}", f"{accuracy:.2%}", "")
    if isinstance(result.linear, LinearProbeResult | LabelProbeResult):
        score = getattr(result.linear, result.metric)
        add_row(sheet, "linear probe", f"penalty {result.linear.penalty:.2g}", f"{score:.2%}", "")
    screen.print(sheet)
    _print_counts(result, f"{result.classes} classes")


def _print_ridge(model: str, result: "ProbeResult") -> None:
    from vitrail.evaluation.ridge_probe import RidgeProbeResult

    assert isinstance(result.linear, RidgeProbeResult)
    sheet = make_table(
        "target", "setting", "#MAE", "#RMSE", "#R²", title=printable(f"{model} on {result.dataset}: {result.eval_split}, ridge")
    )
    for row in result.linear.targets:
        setting = f"penalty {row.penalty:.2g}"
        add_row(sheet, printable(row.name), setting, f"{row.mae:.4g}", f"{row.rmse:.4g}", f"{row.r2:.4f}")
    make_console().print(sheet)
    _print_counts(result, f"{len(result.linear.targets)} target{'s' * (len(result.linear.targets) > 1)}")


def _print_masks(model: str, result: "ProbeResult") -> None:
    from vitrail.evaluation.mask_probe import MaskProbeResult

    found, screen = result.linear, make_console()
    assert isinstance(found, MaskProbeResult)
    screen.print(printable(f"{model} on {result.dataset}: {result.eval_split}, linear probe of patch tokens"), soft_wrap=True)
    table = make_table("metric", "#value", "#95 % CI")
    titles = {"miou": "mean IoU", "pixel_accuracy": "pixel accuracy", "boundary_iou": "boundary IoU"}
    for name, title in titles.items():
        add_row(table, title, f"{getattr(found, name):.2%}", " to ".join(f"{end:.2%}" for end in found.interval[name]))
    screen.print(table)
    table = make_table("class", "#IoU", "#95 % CI", "#Dice", "#boundary IoU", "#precision", "#recall")
    for row in sorted(found.classes, key=lambda row: row["iou"])[:MAX_PRINTED_CLASSES]:
        scores = (f"{row[name]:.1%}" for name in ("dice", "boundary_iou", "precision", "recall"))
        add_row(
            table, printable(row["name"]), f"{row['iou']:.1%}", " to ".join(f"{end:.1%}" for end in row["interval"]), *scores
        )
    screen.print(table)
    blocks = "the last block" if found.layers == 1 else f"the last {found.layers} blocks"
    screen.print(f"tokens of {blocks}, learning rate {found.learning_rate:g}: the best on validation", soft_wrap=True)
    _print_counts(result, f"{result.classes} classes of pixels")
    screen.print(printable(f"next: vitrail finetune {model} {result.dataset} --task segment"), soft_wrap=True)


def _print_counts(result: "ProbeResult", kinds: str) -> None:
    screen = make_console()
    counts = ", ".join(f"{count:,} {split}" for split, count in result.num_images.items())
    unreadable = f"; {result.unreadable_images:,} unreadable" if result.unreadable_images else ""
    screen.print(f"{kinds}; {counts}{unreadable}")
    for note in result.notes:
        screen.print(printable(f"note: {column_options(note)}"), soft_wrap=True)


def _print_suite(model: str, suite: Path, entries: "tuple[SuiteEntry, ...]", results: "list[ProbeResult]", json: bool) -> None:
    from vitrail.evaluation.probe import headline_metrics, mean_metrics

    rows = {entry.name: headline_metrics(result) for entry, result in zip(entries, results, strict=True)}
    groups = {
        group: mean_metrics([rows[entry.name] for entry in entries if entry.group == group])
        for group in dict.fromkeys(entry.group for entry in entries)
        if group
    }
    if json:
        datasets = [
            {"name": entry.name, "group": entry.group, **asdict(result)} for entry, result in zip(entries, results, strict=True)
        ]
        print_json(
            {
                "model": model,
                "suite": str(suite),
                "data": datasets,
                "groups": groups,
                "mean": mean_metrics(list(rows.values())),
            }
        )
        return
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    sheet = make_table("data", "group", *(f"#{column}" for column in columns), title=printable(f"{model} on {suite}"))
    for entry in entries:
        add_row(sheet, printable(entry.name), printable(entry.group), *_format_cells(rows[entry.name], columns))
    sheet.add_section()
    for group, row in groups.items():
        add_row(sheet, "mean", printable(group), *_format_cells(row, columns))
    add_row(sheet, "mean", "all", *_format_cells(mean_metrics(list(rows.values())), columns))
    make_console().print(sheet)
    for entry, result in zip(entries, results, strict=True):
        for note in result.notes:
            make_console().print(printable(f"{entry.name}: {note}"), soft_wrap=True)


def _format_cells(row: dict[str, float], columns: list[str]) -> list[Any]:
    from vitrail.evaluation.probe import RIDGE_COLUMN

    return ["" if name not in row else f"{row[name]:.4f}" if name == RIDGE_COLUMN else f"{row[name]:.2%}" for name in columns]
