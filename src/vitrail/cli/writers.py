"""Writers of results: predictions as CSV or JSON lines, features as Parquet or NumPy's ``.npz``."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vitrail.errors import VitrailError
from vitrail.inference.csv_lines import csv_line, encode_text
from vitrail.io import atomic_path

if TYPE_CHECKING:
    from vitrail.data.sources.dataset import Dataset
    from vitrail.inference.run import OutputBatch
    from vitrail.tasks.task import Prediction

WritePrediction = Callable[["Prediction"], None]
PREDICTION_SUFFIXES = (".csv", ".jsonl")
WriteFeatures = Callable[[str, "Dataset", "OutputBatch"], None]
FEATURE_SUFFIXES = (".parquet", ".npz")


@contextmanager
def open_prediction_writer(kind: str, columns: Sequence[str], out: Path | None) -> Iterator[WritePrediction]:
    """Yield a function that writes a row; rows are bytes, so that file names keep their encoding."""
    with _open_output(out) as file:
        yield prediction_writer(kind, columns, file)


def prediction_writer(kind: str, columns: Sequence[str], file: BinaryIO) -> WritePrediction:
    """Return a function that writes a prediction; ``columns`` are those of a CSV file, besides the image and its error."""

    def write(line: bytes) -> None:
        file.write(line)
        file.flush()

    if kind == ".jsonl":
        return lambda row: write(encode_text(json.dumps(row.plain(), allow_nan=False) + "\n"))

    def write_rows(prediction: "Prediction") -> None:
        rows = prediction.rows()
        write(b"".join(csv_line([prediction.file, *map(row.get, columns), prediction.error]) for row in rows))

    write(csv_line(["file", *columns, "error"]))
    return write_rows


@contextmanager
def _open_output(out: Path | None) -> Iterator[BinaryIO]:
    """Open stdout, or a file that appears whole or not at all."""
    if out is None:
        yield sys.stdout.buffer
        return
    with atomic_path(out) as temporary, open(temporary, "wb") as file:
        yield file


def feature_writer(
    path: Path, ending: str, names: Sequence[str], width: Callable[[], int]
) -> AbstractContextManager[WriteFeatures]:
    """Return a writer of feature rows; ``names`` are the classes, ``width`` the feature size that an empty table needs."""
    return _parquet_writer(path, width) if ending == ".parquet" else _npz_writer(path, names, width)


@contextmanager
def _parquet_writer(path: Path, width: Callable[[], int]) -> Iterator[WriteFeatures]:
    """Write one row group per batch, keeping none in memory."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise VitrailError("a Parquet file needs pyarrow; try pip install 'vitrail[datasets]', or write an .npz") from None
    import numpy as np

    from vitrail.data.sources.dataset import label_name
    from vitrail.tasks.multi_label import LABEL_SEPARATOR

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

    def write_rows(split: str, source: "Dataset", rows: "OutputBatch") -> None:
        numbers = rows.indices.tolist()
        labels = [_valid_utf8(label_name(source, number, LABEL_SEPARATOR)) or None for number in numbers]
        write([_valid_utf8(source.describe(number)) for number in numbers], labels, [split] * len(numbers), rows.values)

    try:
        yield write_rows
        if not writers:
            write([], [], [], np.zeros((0, width()), np.float32))
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def _npz_writer(path: Path, names: Sequence[str], width: Callable[[], int]) -> Iterator[WriteFeatures]:
    """Write arrays of numbers and text without pickle, all at the end, since an array's file begins with its length."""
    import numpy as np

    from vitrail.data.sources.dataset import label_name
    from vitrail.tasks.multi_label import LABEL_SEPARATOR

    batches: list[tuple[str, list[str], Any, Any]] = []
    label_names: list[str] = []  # if images may have several labels

    def write_rows(split: str, source: "Dataset", rows: "OutputBatch") -> None:
        if source.label_sets is not None:
            label_names.extend(label_name(source, number, LABEL_SEPARATOR) for number in rows.indices.tolist())
        files = [source.describe(number) for number in rows.indices.tolist()]
        batches.append((split, files, source.labels[rows.indices], rows.values))

    yield write_rows
    if not batches:
        batches.append(("", [], np.zeros(0, np.int64), np.zeros((0, width()), np.float32)))
    with open(path, "wb") as file:
        np.savez(
            file,
            allow_pickle=False,
            features=np.concatenate([values for *_, values in batches]),
            files=np.array([name for _, files, *_ in batches for name in files], str),
            labels=np.concatenate([labels for _, _, labels, _ in batches]),
            splits=np.array([split for split, files, *_ in batches for _ in files], str),
            names=np.array(names, str),
            **({"label_names": np.array(label_names, str)} if label_names else {}),
        )


def _valid_utf8(name: str) -> str:
    """Return valid UTF-8, as Parquet requires; other characters become a question mark."""
    return name.encode("utf-8", "replace").decode()
