"""``vitrail explain``: what a model sees in pictures, and which explanation of it to trust."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.embed import opened
from vitrail.cli.fitting import Device, Workers
from vitrail.cli.naming import named
from vitrail.cli.options import Json
from vitrail.cli.screen import add, console, print_json, progress, table
from vitrail.errors import VitrailError, printable, suggestion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vitrail.evaluate.explained import Explained
    from vitrail.evaluate.trust import Score, Trust
    from vitrail.models.build import Model

MOST = 50  # pictures of a page


def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or any weights: a folder, a file, hf:owner/name.")],
    files: Annotated[list[str] | None, typer.Argument(metavar="[PICTURES...]", help="Files, folders, 'patterns*.jpg'.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the page, the drawings and the numbers go.")] = Path(
        "explained"
    ),
    method: Annotated[
        list[str] | None,
        typer.Option(help="attention, rollout, gradient_rollout, relevance or gradcam; repeatable, else all."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--class", metavar="NAME", help="The class to explain, else what it says.")
    ] = None,
    trust: Annotated[
        str | None, typer.Option(metavar="DATA", help="Measure on these pictures which map is faithful; panes knows masks too.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Pictures that --trust measures on.")] = 100,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Show what a model looks at: maps by several methods, every head, every layer, and the model's own patterns."""
    if not files and trust is None:
        raise VitrailError("to explain takes pictures, got none; name files or a folder, or measure with --trust DATA")
    _check_folder(out)
    with progress() as tell:
        names = list(named(files, tell)) if files else []
    if len(names) > MOST:
        raise VitrailError(
            f"a page shows at most {MOST} pictures, got {len(names):,}; name fewer, or measure with --trust DATA"
        )

    import torch

    from vitrail.evaluate.explained import explained
    from vitrail.explain.distance import heads
    from vitrail.models.device import device as chosen
    from vitrail.report.explain import write_explained
    from vitrail.weights.load import load

    model = load(run).to(chosen(device))
    _check_methods(method)
    number = None if target is None else _class(target, model)
    seen: list[Explained] = []
    with progress() as tell:
        for one in explained(model, names, method, number):
            seen.append(one)
            tell("explaining", len(seen), len(names))
        looks = heads(model, (torch.stack([one.image]).to(next(model.parameters()).device) for one in seen)) if seen else None
        trusted = [] if trust is None else _trusted(model, trust, method, limit, workers, tell)
    written = write_explained(out, model, seen, looks, trusted)
    if json:
        print_json(_told(run, model, seen, trusted, out, written))
        return
    _tell(model, seen, trusted)
    typer.echo(f"page: {out / written[-1]}")


def _check_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise VitrailError(f"--out must be a folder, got the file {out}; try --out {out.stem or 'explained'}-explained")


def _check_methods(methods: "list[str] | None") -> None:
    from vitrail.explain.maps import METHODS

    for method in methods or ():
        if method not in METHODS:
            raise VitrailError(f"--method {method!r} is none{suggestion(method, METHODS)}; there are {', '.join(METHODS)}")


def _class(name: str, model: "Model") -> int:
    labels = model.labels or tuple(str(number) for number in range(model.config.classes))
    if name in labels:
        return labels.index(name)
    if name.isdecimal() and int(name) < len(labels):
        return int(name)
    raise VitrailError(f"the model has no class {name!r}{suggestion(name, labels)}; name one of its {len(labels)}, or a number")


def _trusted(
    model: "Model", data: str, methods: "list[str] | None", limit: int, workers: int | None, tell: Any
) -> "list[Trust]":
    from vitrail.evaluate.trust import trust

    parts = opened(data, None, tell)
    source = next(parts[name] for name in ("all", "test", "validation", "train") if name in parts)  # no labels are needed
    return trust(model, source, methods, limit, workers=workers, progress=tell)


def _tell(model: "Model", seen: "Sequence[Explained]", trusted: "Sequence[Trust]") -> None:
    screen = console()
    labels = model.labels or tuple(str(number) for number in range(model.config.classes))
    rows = table("picture", "says", "#with", "explained")
    for one in seen:
        odds = one.logits.double().softmax(dim=0)
        first = int(odds.argmax())
        add(rows, printable(one.file), printable(labels[first]), f"{odds[first]:.1%}", printable(labels[one.target]))
    if seen:
        screen.print(rows)
    if not trusted:
        return
    masks = trusted[0].pointing is not None
    more = ("#pointing", "#on the object") if masks else ()
    sheet = table("method", "#deletion", "#insertion", *more, title="Which map to trust: deletion low, all others high")
    for row in trusted:
        add(sheet, row.method, *(_shown(score) for score in (row.deletion, row.insertion, row.pointing, row.overlap) if score))
    screen.print(sheet)


def _shown(score: "Score") -> str:
    return f"{score.mean:.3f} ± {score.error:.3f}"


def _told(
    run: str, model: "Model", seen: "Sequence[Explained]", trusted: "Sequence[Trust]", out: Path, written: list[str]
) -> dict[str, Any]:
    from dataclasses import asdict

    labels = model.labels or tuple(str(number) for number in range(model.config.classes))
    pictures = [
        {
            "file": one.file,
            "label": labels[int(one.logits.argmax())],
            "probability": one.logits.double().softmax(dim=0).max().item(),
            "explained": labels[one.target],
            "maps": {name: values.tolist() for name, values in one.maps.items()},
        }
        for one in seen
    ]
    return {"model": run, "pictures": pictures, "trust": [asdict(row) for row in trusted], "out": str(out), "files": written}
