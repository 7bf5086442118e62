"""``vitrail explain``: saliency maps, attention of every head, logit lens, and the faithfulness of each method."""

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

MOST = 50  # images per page


def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, or any weights: a folder, a file, hf:owner/name.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGES...]", help="Images: files, folders, 'patterns*.jpg'.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", rich_help_panel="Output", help="Folder for the page, the figures and the numbers.")
    ] = Path("explained"),
    method: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Saliency",
            help="Saliency method: attention, rollout, gradient_rollout, relevance, gradcam, integrated_gradients or none; "
            "repeatable, default: all.",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="INDICES",
            rich_help_panel="Attention",
            help="Layers whose heads are drawn, such as 0,3-5 or -1 for the last; default: all.",
        ),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(metavar="INDICES", rich_help_panel="Attention", help="Heads that are drawn; default: all."),
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW,COLUMN",
            rich_help_panel="Attention",
            help="Query token whose attention is drawn: a patch, class or register0; repeatable, default: the pooled tokens.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--class", metavar="NAME", rich_help_panel="Saliency", help="Class to explain; default: the predicted class."
        ),
    ] = None,
    faithfulness: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            rich_help_panel="Faithfulness",
            help="Measure the faithfulness of each method on this dataset; panes also has object masks.",
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, rich_help_panel="Faithfulness", help="Number of images that faithfulness is measured on."
        ),
    ] = 100,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Explain predictions: saliency maps, attention of every head and layer, logit lens and learnt filters."""
    if not files and faithfulness is None:
        raise VitrailError("explain needs images, got none; name files or a folder, or use --faithfulness DATA")
    if out.exists() and not out.is_dir():
        raise VitrailError(f"--out must be a folder, got the file {out}; try --out {out.stem or 'explained'}-explained")
    _check_out(out)
    with progress() as tell:
        names = list(named(files, tell)) if files else []
    if files and not names:
        raise VitrailError(f"there is no image in {printable(files[0])}; name files, or a folder of images")
    if len(names) > MOST:
        raise VitrailError(f"a page shows at most {MOST} images, got {len(names):,}; name fewer, or use --faithfulness DATA")

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
        trusted = [] if faithfulness is None else _trusted(model, faithfulness, methods, limit, workers, tell)
    written = write_explained(out, model, seen, far, trusted)
    if json:
        print_json(_told(run, model, seen, far, trusted, out, written))
        return
    _tell(model, seen, trusted)
    typer.echo(f"page: {out / written[-1]}")


def _check_out(out: Path) -> None:
    """Check before the work that the folder can be written, leaving nothing behind."""
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
    """Parse indices and ranges such as ``0,3-5,-1``; negative ones count from the end."""
    if words is None:
        return None
    found: list[int] = []
    for word in words.split(","):
        part = re.fullmatch(r"\s*(-?\d{1,6})(?:-(\d{1,6}))?\s*", word)
        first, last = (int(part[1]), int(part[2] or part[1])) if part else (0, of)
        if not (-of <= first <= last < of):
            raise VitrailError(
                f"{option} must be indices from 0 to {of - 1} as in 0,{of - 1} or 0-{of - 1}, or -1 for the last; "
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
        raise VitrailError("--class needs a classifier, and a model without a head (classes=0) has no classes; leave it out")
    raise VitrailError(f"the model has no class {name!r}{suggestion(name, labels)}; name one of its {len(labels)}, or a number")


def _trusted(
    model: "Model", data: str, methods: "list[str] | None", limit: int, workers: int | None, tell: Any
) -> "list[Trust]":
    from vitrail.evaluate.trust import trust

    parts = opened(data, None, tell)
    source = next(parts[name] for name in ("all", "test", "validation", "train") if name in parts)  # labels are not needed
    return trust(model, source, methods, limit, workers=workers, progress=tell)


def _tell(model: "Model", seen: "Sequence[Explained]", trusted: "Sequence[Trust]") -> None:
    screen = console()
    labels = model.labels or tuple(str(number) for number in range(model.config.classes))
    rows = table("image", "prediction", "#probability", "explained class")
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
    more = ("#pointing game", "#mass on object") if masks else ()
    sheet = table("method", "#deletion", "#insertion", *more, title="Faithfulness: lower deletion is better, all others higher")
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
            "logit_lens": None if one.target is None else one.lens[:, one.target].tolist(),
            "token_norms": one.norms.tolist(),
        }
        for one in seen
    ]
    measures = ("distance", "renormalised", "entropy", "similarity")
    heads = None if far is None else {name: getattr(far, name).tolist() for name in measures}
    trust = [asdict(row) for row in trusted]
    return {"model": run, "images": pictures, "heads": heads, "faithfulness": trust, "out": str(out), "files": written}
