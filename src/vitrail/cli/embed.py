"""``vitrail embed``: features of every picture into a file that other programs read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.fitting import Device, Workers
from vitrail.cli.naming import Tell
from vitrail.cli.options import Json, check_out, whole
from vitrail.cli.probe import Batch, Weights
from vitrail.cli.screen import print_json, progress
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.sources.source import Source
    from vitrail.evaluate.features import Rows

Put = Callable[[str, "Source", "Rows"], None]
SPLITS = ("train", "validation", "test")


def embed(
    weights: Weights,
    source: Annotated[str, typer.Argument(metavar="DATA", help="A folder, a file, or a set by its name.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .parquet or .npz file.")],
    split: Annotated[list[str] | None, typer.Option(metavar="NAME", help="train, validation or test; repeatable.")] = None,
    batch: Batch = 64,
    device: Device = "auto",
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Write the features of every picture, with its file, its label and its split."""
    check_splits(split)
    if out.suffix.lower() not in (".parquet", ".npz"):
        raise VitrailError(f"OUT must end in .parquet or .npz, got {out}; try {out.stem or 'features'}.npz")
    check_out(out, "OUT", source)
    if out.exists() and Path(weights).exists() and out.samefile(weights):
        raise VitrailError(f"OUT must not be the weights themselves, got {out}; name another file")

    from vitrail.evaluate.features import stream
    from vitrail.models.device import device as chosen
    from vitrail.weights.load import load

    kind = _parquet if out.suffix.lower() == ".parquet" else _npz
    with progress() as tell, whole(out) as half:
        parts = opened(source, split, tell)
        model = load(weights).to(chosen(device))
        counts, problems, width = dict.fromkeys(parts, 0), [], 0
        with kind(half) as put:
            for name, part in parts.items():
                bad: dict[int, str] = {}
                for rows in stream(model, part, batch, workers, _named(tell, name), bad):
                    put(name, part, rows)
                    counts[name] += len(rows.indices)
                    width = rows.values.shape[1]
                problems += list(bad.values())
    if json:
        print_json(
            {"model": weights, "data": source, "out": str(out), "pictures": counts, "width": width, "left_out": problems}
        )
    else:
        amounts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        left = f"; {len(problems):,} bad left out" if problems else ""
        typer.echo(f"{amounts}, {width} features each{left}: {out}")


def check_splits(split: list[str] | None) -> None:
    for name in split or ():
        if name not in SPLITS:
            raise VitrailError(f"--split must be train, validation or test, got {name!r}")


def opened(source: str, split: list[str] | None, tell: Tell) -> "dict[str, Source]":
    """The splits that are asked for and have pictures; a folder of loose pictures is one of its own, ``all``."""
    from vitrail.data.sources.open import pictures

    if split is None and (loose := _loose(Path(source), tell)) is not None:
        return {"all": loose}
    data = pictures(source, progress=tell)
    parts = {name: data.splits[name] for name in SPLITS if name in (split or SPLITS) and len(data.splits[name])}
    if not parts:
        there = ", ".join(name for name, part in data.splits.items() if len(part)) or "nothing"
        raise VitrailError(f"{data.name} has no pictures in {' or '.join(split or SPLITS)}; it has {there}")
    return parts


def _loose(root: Path, tell: Tell) -> "Source | None":
    """The pictures of a folder that has no folders in it, and so no classes."""
    if not root.is_dir() or any(entry.is_dir() and not entry.name.startswith(".") for entry in root.iterdir()):
        return None

    import numpy as np

    from vitrail.data.sources.scan import scan
    from vitrail.data.sources.source import Files

    paths = scan(root, tell).paths
    return Files(root, paths, np.full(len(paths), -1, np.int64), ()) if paths else None


@contextmanager
def _parquet(path: Path) -> Iterator[Put]:
    """A row group a batch, none of them kept in memory."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise VitrailError("a Parquet file needs pyarrow: pip install 'vitrail[datasets]'; or write an .npz") from None
    from vitrail.data.sources.source import label_name

    writers: list[Any] = []

    def put(split: str, source: "Source", rows: "Rows") -> None:
        numbers = rows.indices.tolist()
        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.values.reshape(-1)), rows.values.shape[1])
        columns = {
            "file": pyarrow.array([_text(source.where(number)) for number in numbers]),
            "label": pyarrow.array([_text(label_name(source, number)) or None for number in numbers], pyarrow.string()),
            "split": pyarrow.array([split] * len(numbers)),
            "features": vectors,
        }
        group = pyarrow.table(columns)
        if not writers:
            writers.append(pyarrow.parquet.ParquetWriter(path, group.schema))
        writers[0].write_table(group)

    try:
        yield put
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def _npz(path: Path) -> Iterator[Put]:
    """Arrays of numbers and of text, no pickle; all at once in the end, since an array's file begins with its length."""
    import numpy as np

    kept: list[tuple[str, list[str], Any, Any]] = []
    classes: list[str] = []

    def put(split: str, source: "Source", rows: "Rows") -> None:
        files = [source.where(number) for number in rows.indices.tolist()]
        classes[:] = source.names  # those of one split are those of all
        kept.append((split, files, source.labels[rows.indices], rows.values))

    yield put
    with open(path, "wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            features=np.concatenate([values for *_, values in kept]),
            files=np.array([name for _, files, *_ in kept for name in files]),
            labels=np.concatenate([labels for _, _, labels, _ in kept]),
            splits=np.array([split for split, files, *_ in kept for _ in files]),
            names=np.array(classes, str),
        )


def _text(name: str) -> str:
    """Parquet's text is UTF-8; a letter of a name that is none becomes a question mark."""
    return name.encode("utf-8", "replace").decode()


def _named(tell: Tell, split: str) -> Tell:
    return lambda what, done, total: tell(f"{what} of {split}", done, total)
