"""``vitrail evaluate``: accuracy, loss and calibration with confidence intervals; several models with a paired test."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.cli.faster import Compile, Drop, Image, Merge, switches
from vitrail.cli.fitting import Device, Workers
from vitrail.cli.options import Batch, Json, RunsAndData, Split
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError, printable

if TYPE_CHECKING:
    from vitrail.data.sources.source import Data
    from vitrail.evaluate.evaluate import Compared, Measured

WORST = 5  # classes and pairs that are printed
LARGEST = 100  # classes of a confusion matrix in JSON
TITLES = {"top1": "top-1", "top5": "top-5", "nll": "NLL", "ece": "ECE"}


def evaluate(
    words: RunsAndData,
    split: Split = None,
    tta: Annotated[
        Literal["flip", "crops"] | None,
        typer.Option(rich_help_panel="Model", help="Test-time augmentation: average over the horizontal flip, or ten crops."),
    ] = None,
    batch: Batch = 64,
    compile: Compile = False,
    merge: Merge = None,
    drop: Drop = 0.0,
    image: Image = None,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Evaluate models on a labelled dataset: accuracy, NLL and ECE with confidence intervals; several are compared."""
    *runs, data = words
    if not runs:
        raise VitrailError(f"evaluate needs a model and a dataset, got {data!r} alone; try `vitrail evaluate {data} fashion`")

    from vitrail.evaluate.caution import opened
    from vitrail.evaluate.evaluate import compare, measure
    from vitrail.export.exported import open_model
    from vitrail.models.device import device as chosen

    where, measured = chosen(device), []
    how = switches(compile, merge, drop, image, where.type)
    models = [open_model(run, how) for run in runs]  # all of them, so that a wrong name is reported before the work
    with progress() as tell:
        source = opened(data, models[0], tell)
        for run, model in zip(runs, models, strict=True):
            _check(run if len(runs) > 1 else "", model, source, split)
        for number, model in enumerate(models, 1):
            told = counted(tell, number, len(runs))
            measured.append(measure(model.to(where), source, split, tta, batch, workers, told))
            model.cpu()
    pairs = [compare(measured[0], other) for other in measured[1:]]
    if json:
        told_runs = [{"model": run, "tta": tta, **_plain(each)} for run, each in zip(runs, measured, strict=True)]
        paired = [{"first": runs[0], "other": run, **asdict(pair)} for run, pair in zip(runs[1:], pairs, strict=True)]
        print_json(told_runs[0] if len(runs) == 1 else {"runs": told_runs, "paired": paired})
    elif len(runs) == 1:
        _tell(measured[0])
    else:
        _tell_several(runs, measured, pairs)


def _check(run: str, model: Any, source: "Data", split: str | None) -> None:
    """Raise unless the model can be evaluated on this dataset; of several models, name the one that cannot."""
    from vitrail.evaluate.match import matched, split_of
    from vitrail.evaluate.predict import preprocessing

    try:
        preprocessing(model)
        matched(split_of(source, split)[1], model, source.name)
    except VitrailError as error:
        raise VitrailError(f"{run}: {error}" if run else str(error)) from None


def counted(tell: Any, number: int, of: int) -> Any:
    """Add which of several models is running to the progress message."""
    return tell if of == 1 else lambda what, done, total: tell(f"{what} ({number} of {of})", done, total)


def _plain(found: "Measured") -> dict[str, Any]:
    from vitrail.evaluate.accuracy import confused, confusion

    shown, answers = found.classes.occurring.tolist(), found.answers
    few = len(shown) <= LARGEST and len(found.names) <= 10 * LARGEST
    matrix = confusion(answers.guesses, answers.labels, len(found.names))[shown][:, shown].tolist() if few else None
    return {
        "data": found.data,
        "split": found.split,
        "images": len(answers.labels),
        "unreadable_images": answers.left_out,
        "top1": found.top1,
        "top5": found.top5,
        "nll": found.nll,
        "ece": found.ece,
        "interval": found.interval,
        "macro": found.classes.macro(),
        "calibrated": asdict(found.calibrated) if found.calibrated else None,
        "classes": [_class(found, number) for number in shown],
        "confusion": matrix,
        "confused": [
            {"label": found.names[is_], "predicted": found.names[said], "count": times}
            for is_, said, times in confused(answers.guesses, answers.labels)[:LARGEST]
        ],
        "reliability": {name: values.tolist() for name, values in vars(found.reliability).items()},
        "notes": found.notes,
    }


def _class(found: "Measured", number: int) -> dict[str, Any]:
    each = found.classes
    return {
        "name": found.names[number],
        "images": int(each.support[number]),
        **{name: getattr(each, name)[number].item() for name in ("precision", "recall", "f1")},
    }


def _tell(found: "Measured") -> None:
    screen = console()
    _head(found)
    sheet = table("metric", "#value", "#95 % CI")
    for name in _worth(found):
        add(sheet, TITLES[name], _shown(name, getattr(found, name)), _range(name, found.interval[name]))
    for name, value in found.classes.macro().items():
        add(sheet, f"macro {name if name != 'f1' else 'F1'}", f"{value:.2%}", "")
    if found.calibrated is not None:
        cooled = found.calibrated
        title = f"with temperature {cooled.temperature:.3f}, fitted on {cooled.fitted_on:,} validation images"
        add(sheet, f"NLL {title}", f"{cooled.nll:.4f}", "")
        add(sheet, "ECE with that temperature", f"{cooled.ece:.2%}", "")
    screen.print(sheet)
    _tell_classes(found)


def _head(found: "Measured") -> None:
    screen, answers = console(), found.answers
    classes = int((found.classes.support > 0).sum())
    of = "" if classes == len(found.names) else f" of the model's {len(found.names):,}"
    screen.print(
        f"{printable(found.data)}, {found.split}: {len(answers.labels):,} images, {classes:,} classes{of}"
        + (f"; {answers.left_out:,} left out as unreadable" if answers.left_out else ""),
        soft_wrap=True,
    )
    for note in found.notes:
        screen.print(f"  {printable(note)}", soft_wrap=True)


def _tell_classes(found: "Measured") -> None:
    from vitrail.evaluate.accuracy import confused

    screen, each = console(), found.classes
    there = [number for number in each.occurring.tolist() if each.support[number]]
    lowest = sorted(there, key=lambda number: each.f1[number].item())[:WORST]
    sheet = table("class", "#images", "#recall", "#precision", "#F1", title="Classes of lowest F1")
    for number in lowest if len(there) > 1 else ():
        shares = (f"{values[number].item():.1%}" for values in (each.recall, each.precision, each.f1))
        add(sheet, printable(found.names[number]), f"{int(each.support[number]):,}", *shares)
    pairs = confused(found.answers.guesses, found.answers.labels)[:WORST]
    mixed = table("class", "predicted as", "#count", title="Most confused classes")
    for is_, said, times in pairs:
        add(mixed, printable(found.names[is_]), printable(found.names[said]), f"{times:,}")
    for made in (sheet, mixed):
        if made.row_count:
            screen.print(made)


def _tell_several(runs: list[str], measured: "list[Measured]", pairs: "list[Compared]") -> None:
    screen = console()
    _head(measured[0])
    for run, found in zip(runs[1:], measured[1:], strict=True):
        for note in found.notes:
            if note not in measured[0].notes:
                screen.print(f"  {printable(run)}: {printable(note)}", soft_wrap=True)
    names = _worth(measured[0])
    sheet = table("model", *(f"#{TITLES[name]}" for name in names))
    for run, found in zip(runs, measured, strict=True):
        add(
            sheet,
            printable(run),
            *(f"{_shown(name, getattr(found, name))}\n{_range(name, found.interval[name])}" for name in names),
        )
    screen.print(sheet)
    rows = table(
        "model",
        *(f"#{TITLES[name]}" for name in names),
        "#only it correct",
        "#p",
        title=f"Difference from {printable(runs[0])}, in percentage points",
    )
    for run, pair in zip(runs[1:], pairs, strict=True):
        cells = (f"{_shown(name, pair.difference[name], True)}\n{_range(name, pair.interval[name], True)}" for name in names)
        add(rows, printable(run), *cells, f"{pair.only_other:,} to {pair.only_first:,}", f"{pair.p:.2g}")
    screen.print(rows)
    screen.print("p: McNemar's exact test on top-1; how often two equally good models would differ this much", soft_wrap=True)


def _worth(found: "Measured") -> list[str]:
    """List the metrics to print; with five classes or fewer, top-5 is always correct."""
    return [name for name in TITLES if name != "top5" or len(found.names) > 5]


def _shown(name: str, value: float, signed: bool = False) -> str:
    if name == "nll":
        return f"{value:+.4f}" if signed else f"{value:.4f}"
    return f"{100 * value:+.2f}" if signed else f"{value:.2%}"


def _range(name: str, ends: tuple[float, float], signed: bool = False) -> str:
    low, high = (_shown(name, end, signed) for end in ends)
    return f"{low} to {high}"
