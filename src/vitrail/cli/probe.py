"""``vitrail probe``: quality of frozen features, before any fine-tuning."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.fitting import Device, Workers
from vitrail.cli.options import Batch, Json
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.data.sources.source import Data
    from vitrail.evaluate.probe import Entry, Probe

Weights = Annotated[str, typer.Argument(metavar="WEIGHTS", help="Run folder, or any weights: a folder, a file, hf:owner/name.")]


def probe(
    weights: Weights,
    source: Annotated[str | None, typer.Argument(metavar="[DATA]", help="Dataset: a folder, a file, or a known name.")] = None,
    suite: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", rich_help_panel="Data", help="File that lists several datasets, instead of one."),
    ] = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Run",
            help="Protocol to run: fewshot, knn or linear; repeatable, default: all.",
        ),
    ] = None,
    batch: Batch = 64,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Evaluate frozen features by few-shot, k-nearest-neighbour and linear probes."""
    if (source is None) == (suite is None):
        raise VitrailError(
            "name one dataset or one suite: vitrail probe WEIGHTS DATA, or vitrail probe WEIGHTS --suite FILE.toml"
        )

    from vitrail.evaluate.probe import PROTOCOLS, Entry, checked, read_suite
    from vitrail.evaluate.probe import probe as measure
    from vitrail.models.device import device as chosen
    from vitrail.weights.load import load

    wanted = checked(protocol or PROTOCOLS)
    entries = (Entry(str(source), str(source), "", wanted),) if suite is None else _chosen(read_suite(suite), wanted)
    model = load(weights).to(chosen(device))
    found = []
    with progress() as tell:
        sources = [
            _opened(entry, model, tell, suite) for entry in entries
        ]  # so that a missing dataset is reported before the work
    for entry, data in zip(entries, sources, strict=True):
        with progress() as tell:
            found.append(measure(model, data, entry.protocols, batch, workers, tell))
    if suite is None:
        print_json({"model": weights, **asdict(found[0])}) if json else _draw(weights, found[0])
    else:
        _print_suite(weights, suite, entries, found, json)


def _opened(entry: "Entry", model: Any, tell: Any, suite: Path | None) -> "Data":
    from vitrail.evaluate.caution import opened
    from vitrail.evaluate.probe import splits

    try:
        data = opened(entry.source, model, tell)
        splits(data, entry.protocols)
    except VitrailError as error:
        raise VitrailError(str(error) if suite is None else f"{entry.name} of {suite}: {error}") from None
    return data


def _chosen(entries: "tuple[Entry, ...]", wanted: tuple[str, ...]) -> "tuple[Entry, ...]":
    """Restrict each dataset to the requested protocols, and drop those left with none."""
    from dataclasses import replace

    kept = [replace(entry, protocols=tuple(name for name in entry.protocols if name in wanted)) for entry in entries]
    if not any(entry.protocols for entry in kept):
        raise VitrailError(f"no dataset of the suite uses {' or '.join(wanted)}; change --protocol")
    return tuple(entry for entry in kept if entry.protocols)


def _draw(weights: str, found: "Probe") -> None:
    screen = console()
    drawn = table("protocol", "setting", "#accuracy", "#std", title=printable(f"{weights} on {found.data}: {found.on}"))
    for few in found.fewshot or ():
        add(drawn, "few-shot", f"{few.shots} shots per class", f"{few.accuracy:.2%}", f"± {few.spread:.2%}")
    for neighbours, accuracy in (found.knn or {}).items():
        add(drawn, "k-NN", f"k = {neighbours}", f"{accuracy:.2%}", "")
    if found.linear is not None:
        add(drawn, "linear probe", f"penalty {found.linear.penalty:.2g}", f"{found.linear.accuracy:.2%}", "")
    screen.print(drawn)
    amounts = ", ".join(f"{count:,} {split}" for split, count in found.pictures.items())
    screen.print(f"{found.classes} classes; {amounts}" + (f"; {found.left_out:,} unreadable" if found.left_out else ""))
    for note in found.notes:
        screen.print(printable(f"note: {note}"), soft_wrap=True)


def _print_suite(weights: str, suite: Path, entries: "tuple[Entry, ...]", found: "list[Probe]", json: bool) -> None:
    from vitrail.evaluate.probe import headline, means

    rows = {entry.name: headline(one) for entry, one in zip(entries, found, strict=True)}
    groups = {
        group: means([rows[entry.name] for entry in entries if entry.group == group])
        for group in dict.fromkeys(entry.group for entry in entries)
        if group
    }
    if json:
        sets = [{"name": entry.name, "group": entry.group, **asdict(one)} for entry, one in zip(entries, found, strict=True)]
        print_json({"model": weights, "suite": str(suite), "data": sets, "groups": groups, "mean": means(list(rows.values()))})
        return
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    drawn = table("data", "group", *(f"#{column}" for column in columns), title=printable(f"{weights} on {suite}"))
    for entry in entries:
        add(drawn, printable(entry.name), printable(entry.group), *_cells(rows[entry.name], columns))
    drawn.add_section()
    for group, row in groups.items():
        add(drawn, "mean", printable(group), *_cells(row, columns))
    add(drawn, "mean", "all", *_cells(means(list(rows.values())), columns))
    console().print(drawn)
    for entry, one in zip(entries, found, strict=True):
        for note in one.notes:
            console().print(printable(f"{entry.name}: {note}"), soft_wrap=True)


def _cells(row: dict[str, float], columns: list[str]) -> list[Any]:
    return [f"{row[column]:.2%}" if column in row else "" for column in columns]
