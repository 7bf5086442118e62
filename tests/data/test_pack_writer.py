"""Any dataset can be packed, and its pack has the same images with the same labels."""

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.images import image_bytes
from vitrail.data.decode import decode
from vitrail.data.pack_writer import write_pack
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.open import open_dataset

FILES = [image_bytes(number) for number in range(12)]
LABELS = [number % 2 for number in range(12)]
SPLITS = ["train"] * 8 + ["val"] * 4


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def write_shard_files(root: Path) -> Path:
    for split in ("train", "val"):
        with tarfile.open(root / f"{split}-0.tar", "w") as tar:
            for number, content in enumerate(FILES):
                if SPLITS[number] == split:
                    for name, part in ((f"{number:02}.jpg", content), (f"{number:02}.cls", str(LABELS[number]).encode())):
                        info = tarfile.TarInfo(name)
                        info.size = len(part)
                        tar.addfile(info, io.BytesIO(part))
    return root


def write_parquet(root: Path) -> Path:
    pyarrow: Any = pytest.importorskip("pyarrow")
    writer: Any = pytest.importorskip("pyarrow.parquet")
    columns = {"image": FILES, "label": [str(label) for label in LABELS], "split": SPLITS}
    writer.write_table(pyarrow.table(columns), root / "set.parquet")
    return root / "set.parquet"


def save_hf_dataset(root: Path) -> Path:
    datasets: Any = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["0", "1"])})
    parts = {}
    for split, name in (("train", "train"), ("val", "validation")):
        rows = [number for number in range(12) if SPLITS[number] == split]
        values = {"image": [{"bytes": FILES[row], "path": None} for row in rows], "label": [LABELS[row] for row in rows]}
        parts[name] = datasets.Dataset.from_dict(values, features=features)
    datasets.DatasetDict(parts).save_to_disk(root / "saved")
    return root / "saved"


def decoded_pixels(dataset: Dataset, index: int) -> np.ndarray:
    content = dataset.read(index)
    return content if isinstance(content, np.ndarray) else np.asarray(decode(content))


@pytest.mark.parametrize("keep", ["pixels", "jpeg"])
@pytest.mark.parametrize("make", [write_shard_files, write_parquet, save_hf_dataset], ids=lambda make: make.__name__)
def test_a_pack_of_any_dataset_has_the_same_images(make: Any, keep: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    before = open_dataset(make(tmp_path / "source"))
    write_pack(tmp_path / "x.pack", {split: part for split, part in before.splits.items() if len(part)}, store=keep)
    after = open_dataset(tmp_path / "x.pack")
    assert after.class_names == before.class_names == ("0", "1")
    for split, count in (("train", 8), ("validation", 4)):
        ours, theirs = before.splits[split], after.splits[split]
        assert len(ours) == len(theirs) == count
        assert np.array_equal(ours.labels, theirs.labels)
        assert all(np.array_equal(decoded_pixels(ours, index), decoded_pixels(theirs, index)) for index in range(count))
