"""Write the features, files, labels and splits of images as Parquet or as NumPy's ``.npz``."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.data.sources.source import Source
    from vitrail.evaluate.features import Rows

Put = Callable[[str, "Source", "Rows"], None]
ENDINGS = (".parquet", ".npz")


def table(path: Path, ending: str, names: Sequence[str], width: Callable[[], int]) -> AbstractContextManager[Put]:
    """Return a writer of feature rows; ``names`` are the classes, ``width`` the feature size that an empty table needs."""
    return _parquet(path, width) if ending == ".parquet" else _npz(path, names, width)


@contextmanager
def _parquet(path: Path, width: Callable[[], int]) -> Iterator[Put]:
    """Write one row group per batch, keeping none in memory."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise VitrailError("a Parquet file needs pyarrow: pip install 'vitrail[datasets]'; or write an .npz") from None
    import numpy as np

    from vitrail.data.sources.source import label_name

    writers: list[Any] = []

    def write(files: list[str], labels: list[str | None], splits: list[str], values: Any) -> None:
        columns = {
            "file": pyarrow.array(files, pyarrow.string()),
            "label": pyarrow.array(labels, pyarrow.string()),
            "split": pyarrow.array(splits, pyarrow.string()),
            "features": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.reshape(-1)), values.shape[1]),
        }
        group = pyarrow.table(columns)
        if not writers:
            writers.append(pyarrow.parquet.ParquetWriter(path, group.schema))
        writers[0].write_table(group)

    def put(split: str, source: "Source", rows: "Rows") -> None:
        numbers = rows.indices.tolist()
        labels = [_text(label_name(source, number)) or None for number in numbers]
        write([_text(source.where(number)) for number in numbers], labels, [split] * len(numbers), rows.values)

    try:
        yield put
        if not writers:
            write([], [], [], np.zeros((0, width()), np.float32))
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def _npz(path: Path, names: Sequence[str], width: Callable[[], int]) -> Iterator[Put]:
    """Write arrays of numbers and text without pickle, all at the end, since an array's file begins with its length."""
    import numpy as np

    kept: list[tuple[str, list[str], Any, Any]] = []

    def put(split: str, source: "Source", rows: "Rows") -> None:
        files = [source.where(number) for number in rows.indices.tolist()]
        kept.append((split, files, source.labels[rows.indices], rows.values))

    yield put
    if not kept:
        kept.append(("", [], np.zeros(0, np.int64), np.zeros((0, width()), np.float32)))
    with open(path, "wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            features=np.concatenate([values for *_, values in kept]),
            files=np.array([name for _, files, *_ in kept for name in files], str),
            labels=np.concatenate([labels for _, _, labels, _ in kept]),
            splits=np.array([split for split, files, *_ in kept for _ in files], str),
            names=np.array(names, str),
        )


def _text(name: str) -> str:
    """Return valid UTF-8, as Parquet requires; other characters become a question mark."""
    return name.encode("utf-8", "replace").decode()
