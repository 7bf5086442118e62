"""``vitrail robustness``: accuracy under common corruptions, for one model or several side by side."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.evaluate import counted
from vitrail.cli.fitting import Device, Workers
from vitrail.cli.options import Batch, Json, RunsAndData, Split, check_out, pair
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.evaluate.beside import Difference
    from vitrail.evaluate.robust import Stressed


def robustness(
    words: RunsAndData,
    split: Split = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", rich_help_panel="Output", help="Write an HTML page with plots and sample images."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, rich_help_panel="Data", help="Number of images, sampled from the split; default: all."
        ),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            metavar="ROWSxCOLUMNS",
            rich_help_panel="Corruptions",
            help="Grid of the cells that are dropped and shuffled; default: the first model's patches.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(rich_help_panel="Corruptions", help="Random seed of the corruptions and of the sample of --limit.")
    ] = 0,
    batch: Batch = 64,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Evaluate robustness to noise, blur, low contrast, JPEG compression, and dropped or shuffled patches."""
    *runs, data = words
    if not runs:
        raise VitrailError(
            f"robustness needs a model and a dataset, got {data!r} alone; try `vitrail robustness {data} fashion`"
        )
    cells = None if grid is None else pair(grid, "--grid")
    if out is not None:
        check_out(out, "--out", data, (".html",))

    from vitrail.evaluate.beside import check_all, differences, shared_grid, unlike
    from vitrail.evaluate.caution import opened
    from vitrail.evaluate.predict import preprocessing
    from vitrail.evaluate.robust import stress
    from vitrail.models.device import device as chosen
    from vitrail.weights.load import load

    where, names, found = chosen(device), _names(runs), []
    with progress() as tell:
        models = [load(run) for run in runs]
        for model in models:
            preprocessing(model)  # raises before any data is read
        source = opened(data, models[0], tell)
        common = cells or shared_grid(models)
        check_all(models, source, split, common)
        for number, model in enumerate(models, 1):
            told = counted(tell, number, len(runs))
            found.append(stress(model.to(where), source, split, common, limit, batch, workers, seed, told))
    measured, gaps = dict(zip(names, found, strict=True)), [differences(found[0], other) for other in found[1:]]
    notes = [f"{name}: {note}" for name, each in measured.items() for note in each.notes if note not in found[0].notes]
    notes += unlike(dict(zip(names, models, strict=True)), common)
    if out is not None:
        _write(out, measured, notes)
    if json:
        print_json(_plain(runs, found, gaps, [*found[0].notes, *notes], out))
        return
    _tell(measured, gaps, notes)
    if out is not None:
        typer.echo(f"page: {out}")


def _names(runs: list[str]) -> list[str]:
    """Return short unique names: without the common parent folders, numbered if a model is named twice."""
    parts = [run.rstrip("/").split("/") for run in runs]
    common = 0
    while len({tuple(each[: common + 1]) for each in parts}) == 1 and all(len(each) > common + 1 for each in parts):
        common += 1
    short = ["/".join(each[common:]) for each in parts] if len(runs) > 1 else runs
    return [name if name not in short[:place] else f"{name} ({place + 1})" for place, name in enumerate(short)]


def _write(out: Path, measured: "dict[str, Stressed]", notes: list[str]) -> None:
    from vitrail.report.page import write_whole
    from vitrail.report.robust import robust_page

    write_whole(out, robust_page(measured, notes).encode("utf-8", "replace"))


def _plain(
    runs: list[str], found: "list[Stressed]", gaps: "list[dict[str, Difference]]", notes: list[str], out: Path | None
) -> dict[str, Any]:
    first = found[0]
    return {
        "data": first.data,
        "split": first.split,
        "images": len(first.indices),
        "unreadable_images": first.left_out,
        "grid": first.grid,
        "models": [{"model": run, **_one(each)} for run, each in zip(runs, found, strict=True)],
        "paired": [
            {"first": runs[0], "other": run, **{name: asdict(each) for name, each in gap.items()}}
            for run, gap in zip(runs[1:], gaps, strict=True)
        ],
        "notes": notes,
        "page": None if out is None else str(out),
    }


def _one(found: "Stressed") -> dict[str, Any]:
    return {
        "clean": found.clean,
        "mean": found.mean,
        "retained": found.retained,
        "interval": {name: found.scores[name].interval for name in ("clean", "all")},
        "corruptions": {
            kind.name: {
                "severities": list(range(1, len(kind.strengths) + 1)),
                "strengths": kind.strengths,
                "unit": kind.unit,
                **{name: value for name, value in vars(found.scores[kind.name]).items() if name != "title"},
            }
            for kind in found.kinds
        },
    }


def _tell(measured: "dict[str, Stressed]", gaps: "list[dict[str, Difference]]", notes: list[str]) -> None:
    from vitrail.evaluate.disturb import MOST

    screen, first = console(), next(iter(measured.values()))
    screen.print(
        f"{printable(first.data)}, {first.split}: {len(first.indices):,} images, cells of {first.grid[0]}x{first.grid[1]}"
        + (f"; {first.left_out:,} left out as unreadable" if first.left_out else ""),
        soft_wrap=True,
    )
    for note in (*first.notes, *notes):
        screen.print(f"  {printable(note)}", soft_wrap=True)
    severities = [str(number) for number in range(1, MOST + 1)]
    who, sure, more = (["model"], [], ["#difference"]) if gaps else ([], ["#95 % CI"], [])
    sheet = table("corruption", *who, *(f"#{each}" for each in severities), "#mean", *sure, "#retained", *more)
    for name in first.scores:
        for number, (model, found) in enumerate(measured.items()):
            score = found.scores[name]
            cells = [f"{right:.1%}" for right in score.top1] + [""] * (len(severities) - len(score.top1))
            low, high = score.interval
            own = [printable(model)] if gaps else []
            rest = [f"{score.mean:.1%}"] if gaps else [f"{score.mean:.1%}", f"{low:.1%} to {high:.1%}"]
            rest.append("" if name == "clean" else f"{score.retained:.1%}")
            rest += [_points(gaps[number - 1][name]) if number else ""] if gaps else []
            add(sheet, "" if number else score.title, *own, *cells, *rest)
    screen.print(sheet)
    screen.print("retained: mean accuracy as a fraction of the accuracy on clean images", soft_wrap=True)
    if gaps:
        screen.print("difference: mean minus that of the first model, in percentage points, with its 95 % CI", soft_wrap=True)


def _points(gap: "Difference") -> str:
    low, high = gap.interval
    return f"{100 * gap.difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
