"""``vitrail embed``: write the features of every image to a file or a folder of part files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitrail.cli.fitting import Device, Workers
from vitrail.cli.naming import Tell
from vitrail.cli.options import Batch, Json, check_out, whole
from vitrail.cli.parts import Part, Share, bar, concluded, in_parts, opened_parts
from vitrail.cli.probe import Weights
from vitrail.cli.screen import print_json, progress
from vitrail.cli.tables import ENDINGS, table
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.sources.source import Source
    from vitrail.evaluate.parts import Parts
    from vitrail.models.build import Model

SPLITS = ("train", "validation", "test")
Splits = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", rich_help_panel="Data", help="Split to take: train, validation or test; repeatable."),
]


def embed(
    weights: Weights,
    source: Annotated[str, typer.Argument(metavar="DATA", help="Dataset: a folder, a file, or a known name.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output: a .parquet or .npz file, or a folder for part files.")],
    split: Splits = None,
    format: Annotated[
        Literal["npz", "parquet"] | None,
        typer.Option(rich_help_panel="Output", help="File format of part files; default: npz."),
    ] = None,
    part: Part = None,
    batch: Batch = 64,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Write the features of every image, with its file, label and split, to Parquet or NumPy files."""
    check_splits(split)
    folder = in_parts(out, ENDINGS, "OUT", part)
    _check(weights, source, out, folder, format)

    from vitrail.models.device import device as chosen
    from vitrail.weights.load import load

    if folder:
        with bar() as tell:
            sources = opened(source, split, tell)
        model = load(weights).to(chosen(device))
        parts = _begun(model, sources, out, part, f".{format or 'npz'}")
        _in_parts({"model": weights, "data": source}, model, sources, parts, batch, workers, json)
        return

    from vitrail.evaluate.features import stream

    with progress() as tell, whole(out) as half:
        parts_of = opened(source, split, tell)
        model = load(weights).to(chosen(device))
        counts, problems, width = dict.fromkeys(parts_of, 0), [], 0
        with table(half, out.suffix.lower(), _names(parts_of), lambda: _width(model)) as put:
            for name, some in parts_of.items():
                bad: dict[int, str] = {}
                for rows in stream(model, some, batch, workers, _named(tell, name), bad):
                    put(name, some, rows)
                    counts[name] += len(rows.indices)
                    width = rows.values.shape[1]
                problems += list(bad.values())
            if not width:
                raise VitrailError(f"no image can be read, the first one {problems[0]}; name another dataset")
    if json:
        print_json(
            {"model": weights, "data": source, "out": str(out), "images": counts, "width": width, "unreadable_images": problems}
        )
    else:
        amounts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        left = f"; {len(problems):,} unreadable" if problems else ""
        typer.echo(f"{amounts}, {width} features each{left}: {out}")


def _check(weights: str, source: str, out: Path, folder: bool, format: str | None) -> None:
    if folder:
        if Path(source).is_dir() and out.absolute().resolve().is_relative_to(Path(source).resolve()):
            raise VitrailError(f"OUT must not be inside the dataset, got {out}; name a folder outside of it")
        return
    if out.suffix.lower() not in ENDINGS:
        raise VitrailError(f"OUT must end in .parquet or .npz, got {out}; try {out.stem or 'features'}.npz")
    if format is not None:
        raise VitrailError(f"--format is for a folder of part files, got {out}; leave it out, or try {out.stem or 'features'}")
    check_out(out, "OUT", source)
    if out.exists() and Path(weights).exists() and out.samefile(weights):
        raise VitrailError(f"OUT must not be the weights themselves, got {out}; name another file")


def _begun(model: "Model", sources: "dict[str, Source]", out: Path, part: int | None, ending: str) -> "Parts":
    """Open a folder of part files for the features of this model on this dataset."""
    from vitrail.data.sources.identity import fingerprint
    from vitrail.data.sources.source import TOLERATED
    from vitrail.evaluate.features import preprocess_of
    from vitrail.evaluate.identity import model_identity

    preprocess_of(model)  # raises before the folder is made
    names = repr([(name, some.where(0)) for name, some in sources.items()])  # with their paths, which the rows hold
    data = hashlib.sha256((names + fingerprint(*sources.values())).encode("utf-8", "surrogateescape")).hexdigest()
    asked = {"command": "embed", "weights": model_identity(model), "data": data}
    return opened_parts(out, ending, sum(map(len, sources.values())), part, asked, TOLERATED)


def _in_parts(
    answer: dict[str, Any],
    model: "Model",
    sources: "dict[str, Source]",
    parts: "Parts",
    batch: int,
    workers: int | None,
    json: bool,
) -> None:
    from vitrail.evaluate.afresh import afresh

    made = bad = 0
    with bar() as tell:
        share = Share(parts, "features", tell)
        for part in parts.todo():
            with (
                parts.writing(part) as draft,
                table(draft.path, parts.ending, _names(sources), lambda: _width(model)) as put,
            ):
                for name, some in _cut(sources, parts.numbers(part)):
                    problems: dict[int, str] = {}
                    for rows in afresh(model, some, batch, workers, problems):
                        put(name, some, rows)
                        share.more(len(rows.indices))
                    draft.problems += problems.values()
                draft.bad = len(draft.problems)
            made, bad = made + 1, bad + draft.bad
            parts.check(bad)
    done = concluded(parts, made)
    if done is not None and json:
        used = done.pictures - done.bad
        told = {"out": str(parts.folder), "parts": parts.count, "images": used, "unreadable_images": list(done.problems)}
        print_json({**answer, **told})
    elif done is not None:
        left = f", {done.bad:,} unreadable" if done.bad else ""
        counted = f"{done.pictures - done.bad:,} images{left}"
        typer.echo(f"{counted}, in {parts.count:,} {'part' if parts.count == 1 else 'parts'}: {parts.folder}")


def _cut(sources: "dict[str, Source]", numbers: range) -> "Iterator[tuple[str, Source]]":
    """Yield the images with these indices per split, where indices run through all splits in order."""
    import numpy as np

    from vitrail.data.sources.source import chosen

    start = 0
    for name, some in sources.items():
        inside = range(max(numbers.start - start, 0), min(numbers.stop - start, len(some)))
        if inside:
            yield name, chosen(some, np.array(inside, np.int64))
        start += len(some)


def _names(sources: "dict[str, Source]") -> tuple[str, ...]:
    return next(iter(sources.values())).names  # all splits have the same classes


def _width(model: "Model") -> int:
    import torch

    from vitrail.evaluate.features import features_of, preprocess_of

    how = preprocess_of(model)
    return features_of(model, torch.zeros(1, len(how.mean), *how.image)).shape[1]


def check_splits(split: list[str] | None) -> None:
    for name in split or ():
        if name not in SPLITS:
            raise VitrailError(f"--split must be train, validation or test, got {name!r}")


def opened(source: str, split: list[str] | None, tell: Tell) -> "dict[str, Source]":
    """Open the requested splits that have images; a folder of unlabelled images is one split, ``all``."""
    from vitrail.data.sources.open import pictures

    if split is None and (loose := _loose(Path(source), tell)) is not None:
        return {"all": loose}
    data = pictures(source, progress=tell)
    parts = {name: data.splits[name] for name in SPLITS if name in (split or SPLITS) and len(data.splits[name])}
    if not parts:
        there = ", ".join(name for name, part in data.splits.items() if len(part)) or "nothing"
        raise VitrailError(f"{data.name} has no images in {' or '.join(split or SPLITS)}; it has {there}")
    return parts


def _loose(root: Path, tell: Tell) -> "Source | None":
    """Open a folder without subfolders, and so without classes; None if it has any."""
    if not root.is_dir() or any(entry.is_dir() and not entry.name.startswith(".") for entry in root.iterdir()):
        return None

    import numpy as np

    from vitrail.data.sources.scan import scan
    from vitrail.data.sources.source import Files

    paths = scan(root, tell).paths
    return Files(root, paths, np.full(len(paths), -1, np.int64), ()) if paths else None


def _named(tell: Tell, split: str) -> Tell:
    return lambda what, done, total: tell(f"{what} of {split}", done, total)
