"""Time and memory to open a table of many rows with several labels each: ``python -m scripts.million_rows [ROWS]``.

The table has a column of splits, so that no image is read; the files do not exist. Time is the processor's.
"""

import csv
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.table import read_table

TAGS = [f"tag{number}" for number in range(55)]


def write_table(path: Path, rows: int, several: bool) -> None:
    rng = np.random.default_rng(0)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("file", "labels", "split"))
        for row in range(rows):
            labels = rng.choice(55, int(rng.integers(0, 6)), replace=False) if several else rng.integers(0, 55, 1)
            split = ("train", "train", "validation", "test")[row % 4]
            writer.writerow((f"images/{row // 1000}/{row}.jpg", ";".join(TAGS[label] for label in labels), split))


def peak() -> float:
    """Return the peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for several in (False, True):
            path, start = Path(folder) / f"{several}.csv", peak()
            write_table(path, rows, several)
            before = time.process_time()
            table = read_table(path)
            read = time.process_time() - before
            read_peak = peak() - start
            data = open_dataset(str(path))
            kind = "several labels" if several else "one label"
            assert sum(map(len, table.splits.values())) == sum(map(len, data.splits.values())) == rows
            total = time.process_time() - before - read
            print(f"{rows:,} rows, {kind}: read_table {read:.1f} s and {read_peak:.0f} MB, open_dataset {total:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
