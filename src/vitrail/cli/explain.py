"""``vitrail explain``: what a model sees in pictures, and which explanation of it to trust."""

import re
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
    from vitrail.explain.distance import Heads
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
        typer.Option(
            help="attention, rollout, gradient_rollout, relevance, gradcam or integrated; repeatable, else all; or none."
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(metavar="NUMBERS", help="Layers whose heads are drawn, as 0,3-5 or -1 for the last; else all.")
    ] = None,
    heads: Annotated[str | None, typer.Option(metavar="NUMBERS", help="Heads that are drawn, else all.")] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW,COLUMN",
            help="The patch whose look is drawn, or class or register0; repeatable, else what the answer is read from.",
        ),
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
    if out.exists() and not out.is_dir():
        raise VitrailError(f"--out must be a folder, got the file {out}; try --out {out.stem or 'explained'}-explained")
    _check_out(out)
    with progress() as tell:
        names = list(named(files, tell)) if files else []
    if files and not names:
        raise VitrailError(f"there is no picture in {printable(files[0])}; name files, or a folder with pictures in it")
    if len(names) > MOST:
        raise VitrailError(
            f"a page shows at most {MOST} pictures, got {len(names):,}; name fewer, or measure with --trust DATA"
        )

    from vitrail.evaluate.explained import Views, check_queries, explained
    from vitrail.explain.attention import checked
    from vitrail.explain.distance import heads as looks
    from vitrail.models.device import device as chosen
    from vitrail.report.explain import write_explained
    from vitrail.weights.load import load

    methods = _methods(method)
    model = load(run).to(chosen(device))
    vit = checked(model)
    number = None if target is None else _class(target, model)
    views = Views(
        _numbers("--layers", layers, len(vit.blocks)),
        _numbers("--heads", heads, vit.config.heads),
        tuple(dict.fromkeys(query)) if query else None,
    )
    check_queries(model, views)
    seen: list[Explained] = []
    with progress() as tell:
        for one in explained(model, names, methods, number, views):
            seen.append(one)
            tell("explaining", len(seen), len(names))
        batches = (one.image[None].to(next(model.parameters()).device) for one in seen)
        far = looks(model, batches) if seen else None
        trusted = [] if trust is None else _trusted(model, trust, methods, limit, workers, tell)
    written = write_explained(out, model, seen, far, trusted)
    if json:
        print_json(_told(run, model, seen, far, trusted, out, written))
        return
    _tell(model, seen, trusted)
    typer.echo(f"page: {out / written[-1]}")


def _check_out(out: Path) -> None:
    """Before the work, and leaving nothing behind: what could not be written is said at once."""
    from tempfile import TemporaryDirectory

    there = next((place for place in (out, *out.parents) if place.exists()), Path())
    try:
        with TemporaryDirectory(prefix=".vitrail-", dir=there):
            pass
    except OSError as error:
        raise VitrailError(
            f"--out must be a folder that can be written, got {out}: {error.strerror or error}; try --out explained"
        ) from None


def _numbers(option: str, words: str | None, of: int) -> tuple[int, ...] | None:
    """``0,3-5,-1``: numbers and ranges, from the end where there is a minus."""
    if words is None:
        return None
    found: list[int] = []
    for word in words.split(","):
        part = re.fullmatch(r"\s*(-?\d{1,6})(?:-(\d{1,6}))?\s*", word)
        first, last = (int(part[1]), int(part[2] or part[1])) if part else (0, of)
        if not (-of <= first <= last < of):
            raise VitrailError(
                f"{option} must be numbers from 0 to {of - 1} as in 0,{of - 1} or 0-{of - 1}, or -1 for the last; "
                f"got {printable(words[:40])!r}"
            )
        found += [one % of for one in range(first, last + 1)]
    return tuple(dict.fromkeys(found))


def _methods(methods: "list[str] | None") -> "list[str] | None":
    from vitrail.explain.maps import METHODS

    if methods == ["none"]:
        return []
    for method in methods or ():
        if method not in METHODS:
            near = suggestion(method, METHODS)
            raise VitrailError(f"--method must be {', '.join(METHODS)}, or none alone, got {printable(method)!r}{near}")
    return list(dict.fromkeys(methods)) if methods else None


def _class(name: str, model: "Model") -> int:
    labels = model.labels or tuple(str(number) for number in range(model.config.classes))
    if name in labels:
        return labels.index(name)
    if name.isdecimal() and int(name) < len(labels):
        return int(name)
    if not labels:
        raise VitrailError("--class names a class, and a model without a head (classes=0) has none; leave it out")
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
        if one.target is not None:
            first = int(one.logits.argmax())
            add(rows, printable(one.file), printable(labels[first]), f"{one.odds[first]:.1%}", printable(labels[one.target]))
    if seen and labels:
        screen.print(rows)
    if not trusted:
        return

    from vitrail.evaluate.trust import verdict

    masks = trusted[0].pointing is not None
    more = ("#pointing", "#on the object") if masks else ()
    sheet = table("method", "#deletion", "#insertion", *more, title="Which map to trust: deletion low, all others high")
    for row in trusted:
        add(sheet, row.method, *(_shown(score) for score in (row.deletion, row.insertion, row.pointing, row.overlap) if score))
    screen.print(sheet)
    if said := verdict(trusted):
        screen.print(said)


def _shown(score: "Score") -> str:
    return f"{score.mean:.3f} ± {score.error:.3f}"


def _told(
    run: str,
    model: "Model",
    seen: "Sequence[Explained]",
    far: "Heads | None",
    trusted: "Sequence[Trust]",
    out: Path,
    written: list[str],
) -> dict[str, Any]:
    from dataclasses import asdict

    labels = model.labels or tuple(str(number) for number in range(model.config.classes))
    pictures = [
        {
            "file": one.file,
            "label": None if one.target is None else labels[int(one.logits.argmax())],
            "probability": None if one.target is None else one.odds.max().item(),
            "explained": None if one.target is None else labels[one.target],
            "maps": {name: values.tolist() for name, values in one.maps.items()},
            "lens": None if one.target is None else one.lens[:, one.target].tolist(),
            "norms": one.norms.tolist(),
        }
        for one in seen
    ]
    measures = ("distance", "renormalised", "entropy", "similarity")
    heads = None if far is None else {name: getattr(far, name).tolist() for name in measures}
    trust = [asdict(row) for row in trusted]
    return {"model": run, "pictures": pictures, "heads": heads, "trust": trust, "out": str(out), "files": written}
