"""Datasets of Hugging Face's library: on disk or in its cache, undecoded, quiet, and with a short timeout without a network."""

import io
import json
import os
import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.tiers import quick_first
from vitrail.data.sources.columns import ANY_COLUMNS, choose_columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.dataset import Dataset
from vitrail.data.sources.huggingface import _build_datasets, is_saved_dataset, read_hf_dataset
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError

pytestmark = pytest.mark.parity
datasets: Any = pytest.importorskip("datasets")
ROOT = Path(__file__).parents[3]


def image_bytes(number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((3, 5, 3), number * 20 % 256, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def make_rows(numbers: range, labels: list[Any], kind: Any, image: str = "image", label: str = "label") -> Any:
    features = datasets.Features({label: kind, image: datasets.Image()})
    images = [{"bytes": image_bytes(number), "path": None} for number in numbers]
    return datasets.Dataset.from_dict({label: labels, image: images}, features=features)


def save_dataset(folder: Path, dataset: Any) -> Path:
    dataset.save_to_disk(folder)
    return folder


def read_splits(address: str | Path, image: str | None = None, **columns: Any) -> dict[str, Dataset]:
    return read_hf_dataset(address, choose_columns(**columns), image=image).splits


def error_message(address: str | Path, **columns: str) -> str:
    with pytest.raises(VitrailError) as caught:
        read_splits(address, **columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


CLASSES = datasets.ClassLabel(names=["zebra", "ant", "cow"])


def test_a_saved_dataset_is_read_by_split_undecoded_with_its_own_class_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parts = {"train": make_rows(range(4), [2, 0, 1, 0], CLASSES), "valid": make_rows(range(4, 7), [1, 1, 2], CLASSES)}
    whole = datasets.DatasetDict(
        parts | {"test": make_rows(range(7, 9), [-1, -1], CLASSES), "extra": make_rows(range(2), [0, 1], CLASSES)}
    )
    folder = save_dataset(tmp_path / "set", whole)
    capfd.readouterr()
    assert is_saved_dataset(folder)
    assert not is_saved_dataset(tmp_path)
    splits = read_splits(folder)
    assert capfd.readouterr() == ("", "")
    assert list(splits) == ["train", "validation", "test"]
    assert {dataset.class_names for dataset in splits.values()} == {("zebra", "ant", "cow")}
    assert {split: dataset.labels.tolist() for split, dataset in splits.items()} == {
        "train": [2, 0, 1, 0],
        "validation": [1, 1, 2],
        "test": [-1, -1],
    }
    dataset = splits["validation"]
    assert dataset.labels.dtype == np.int64
    order = [2, 0, 1, 1, 2]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(dataset.read, order)) == [image_bytes(4 + number) for number in order]
    assert pickle.loads(pickle.dumps(dataset)).read(1) == image_bytes(5)
    assert dataset.describe(1) == f"row 2 of {folder} (validation)"


def test_the_library_decodes_the_same_pixels(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "set", make_rows(range(3), ["b", "a", "b"], datasets.Value("string")))
    dataset = read_splits(folder)[""]
    theirs = datasets.load_from_disk(folder)
    for index in range(3):
        ours = np.asarray(Image.open(io.BytesIO(bytes(dataset.read(index)))))
        assert (ours == np.asarray(theirs[index]["image"])).all()
        assert dataset.class_names[dataset.labels[index]] == theirs[index]["label"]


@pytest.mark.parametrize(
    ("kind", "labels", "numbers", "names"),
    [
        (datasets.Value("string"), ["wolf", "bear", "wolf"], [1, 0, 1], ("bear", "wolf")),
        (datasets.Value("int32"), [10, 9, 2], [2, 1, 0], ("2", "9", "10")),
    ],
)
def test_labels_without_declared_names_are_sorted(
    kind: Any, labels: list[Any], numbers: list[int], names: tuple[str, ...], tmp_path: Path
) -> None:
    rows = datasets.DatasetDict({"train": make_rows(range(2), labels[:2], kind), "test": make_rows(range(1), labels[2:], kind)})
    splits = read_splits(save_dataset(tmp_path / "set", rows))
    assert [*splits["train"].labels, *splits["test"].labels] == numbers
    assert splits["train"].class_names == splits["test"].class_names == names


def test_a_changed_row_order_is_preserved(tmp_path: Path) -> None:
    rows = make_rows(range(6), [0, 1, 2, 0, 1, 2], CLASSES).select([5, 0, 3])
    dataset = read_splits(save_dataset(tmp_path / "set", rows))[""]
    assert [dataset.read(index) for index in range(3)] == [image_bytes(5), image_bytes(0), image_bytes(3)]
    assert dataset.labels.tolist() == [2, 0, 0]


def test_an_image_that_is_only_a_path_is_read_from_there(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image_bytes(5))
    cells = [str(tmp_path / "a.png"), str(tmp_path / "gone.png"), None]
    features = datasets.Features({"image": datasets.Image(), "label": CLASSES})
    rows = datasets.Dataset.from_dict({"image": cells, "label": [0, 1, 2]}, features=features)
    dataset = _build_datasets(datasets, "memory", {"": rows}, None, ANY_COLUMNS, True).splits[
        ""
    ]  # a saved dataset has the bytes embedded
    assert dataset.read(0) == image_bytes(5)
    with pytest.raises(FileNotFoundError):
        dataset.read(1)
    with pytest.raises(VitrailError, match="row 3 of memory has no image"):
        dataset.read(2)


def test_columns_are_found_by_type_and_can_be_named(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "set", make_rows(range(3), [0, 1, 2], CLASSES, image="photo", label="species"))
    assert read_splits(folder)[""].class_names == ("zebra", "ant", "cow")
    assert read_splits(folder, image="photo", labels_column="species")[""].read(1) == image_bytes(1)
    assert "has no column 'foto' for the images; it has species, photo; did you mean 'photo'?" in error_message(
        folder, image="foto"
    )
    assert "the column species of" in error_message(folder, image="species")
    folder = save_dataset(tmp_path / "bare", datasets.Dataset.from_dict({"text": ["a"], "label": ["b"]}))
    assert "has no column for the images, only text, label; rename one to any of path, file" in error_message(folder)
    folder = save_dataset(tmp_path / "none", make_rows(range(2), [None, "a"], datasets.Value("string")))
    assert "row 1: the label is empty" in error_message(folder)
    folder = save_dataset(tmp_path / "binary", make_rows(range(2), [b"a", b"b"], datasets.Value("binary")))
    assert "must hold text, numbers or lists of labels, got bytes" in error_message(folder)


NAMES = ["shoe", "hat", "dress"]
SETS = [["hat", "shoe"], [], ["dress"], ["shoe", "dress"]]


@pytest.mark.parametrize("kind", ["classes", "names", "text", "columns"])
def test_several_labels_per_image_are_read(kind: str, tmp_path: Path) -> None:
    values: dict[str, tuple[Any, list[Any]]] = {
        "classes": (
            {"worn": datasets.List(datasets.ClassLabel(names=NAMES))},
            [{"worn": list(map(NAMES.index, each))} for each in SETS],
        ),
        "names": ({"tags": datasets.List(datasets.Value("string"))}, [{"tags": each} for each in SETS]),
        "text": ({"tags": datasets.Value("string")}, [{"tags": "|".join(each)} for each in SETS]),
        "columns": (
            {name: datasets.Value("bool") for name in NAMES}, [{name: name in each for name in NAMES} for each in SETS],
        ),
    }  # fmt: skip
    features, rows = values[kind]
    parts = {}
    for split, at in (("train", slice(0, 3)), ("test", slice(3, 4))):
        columns: dict[str, Any] = {name: [row[name] for row in rows[at]] for name in features}
        columns |= {"image": [{"bytes": image_bytes(number), "path": None} for number in range(4)[at]]}
        parts[split] = datasets.Dataset.from_dict(columns, features=datasets.Features(features | {"image": datasets.Image()}))
    data = open_dataset(save_dataset(tmp_path / "set", datasets.DatasetDict(parts)), split_fractions=SplitFractions(0.0, 0.0))
    assert data.class_names == (tuple(sorted(NAMES)) if kind in ("names", "text") else tuple(NAMES))
    for dataset, sets in ((data.train, SETS[:3]), (data.test, SETS[3:])):
        assert dataset.label_sets is not None
        assert [
            {data.class_names[label] for label in dataset.label_sets.classes_of(index)} for index in range(len(dataset))
        ] == [set(each) for each in sets]
    assert data.test.read(0) == image_bytes(3)
    assert data.columns.several
    assert "3 labels, 1.2 per image, 1 image without any" in data.notes[0]
    again = open_dataset(str(tmp_path / "set"), columns=data.columns, split_fractions=SplitFractions(0.0, 0.0))
    assert again.fingerprint == data.fingerprint


def test_numbers_are_read_from_named_columns_or_from_decimals(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "set", make_rows(range(3), [1.5, 2.0, 4.0], datasets.Value("float32"), label="Label"))
    for data in (open_dataset(str(folder)), open_dataset(str(folder), target="label")):
        assert data.target_names == ("Label",)
        assert np.concatenate([np.asarray(part.targets) for part in data.splits.values()]).sum() == 7.5
    assert "predicted as numbers" in open_dataset(str(folder)).notes[0]
    with pytest.raises(VitrailError, match=r"has no column 'size' for the target; it has Label"):
        open_dataset(str(folder), target="size")
    folder = save_dataset(tmp_path / "nan", make_rows(range(3), [1.5, None, 4.0], datasets.Value("float32")))
    assert "row 2: the target label must be a number, got nothing" in error_message(folder)


def test_a_mistake_names_the_row_of_the_split(tmp_path: Path) -> None:
    kind = datasets.List(datasets.Value("string"))
    rows = {"train": make_rows(range(2), [["a"], []], kind), "test": make_rows(range(2), [["a"], [""]], kind)}
    folder = save_dataset(tmp_path / "set", datasets.DatasetDict(rows))
    assert "row 2 of test: label has an empty label, got ['']; remove it" in error_message(folder)
    rows["test"] = make_rows(range(2), [["a"], ["b"]], kind)
    source = read_hf_dataset(save_dataset(tmp_path / "other", datasets.DatasetDict(rows)))
    assert source.notes[-1] == "no training image has the label 'b' (row 2 of test), so it cannot be learned"


def test_images_without_labels_are_read_where_none_are_needed(tmp_path: Path) -> None:
    images = {"image": [{"bytes": image_bytes(number), "path": None} for number in range(3)]}
    rows = datasets.Dataset.from_dict(images, features=datasets.Features({"image": datasets.Image()}))
    folder = save_dataset(tmp_path / "set", rows)
    assert len(open_dataset(str(folder), labelled=False, split_fractions=SplitFractions(0.0, 0.0)).train) == 3
    assert "has no column for the labels, only image" in error_message(folder)


def test_ambiguous_splits_are_refused(tmp_path: Path) -> None:
    part = make_rows(range(2), [0, 1], CLASSES)
    folder = save_dataset(tmp_path / "two", datasets.DatasetDict({"val": part, "dev": part}))
    assert "has two splits for validation, among val, dev" in error_message(folder)
    folder = save_dataset(tmp_path / "odd", datasets.DatasetDict({"left": part, "right": part}))
    assert "has the splits left, right; train, validation or test is needed" in error_message(folder)
    folder = save_dataset(tmp_path / "one", datasets.DatasetDict({"left": part}))
    assert list(read_splits(folder)) == [""]
    other = make_rows(range(2), [0, 1], datasets.ClassLabel(names=["ant", "zebra"]))
    folder = save_dataset(tmp_path / "differ", datasets.DatasetDict({"train": part, "test": other}))
    assert "the splits of" in error_message(folder)


def test_a_missing_or_damaged_folder_is_named(tmp_path: Path) -> None:
    assert "cannot be read" in error_message(tmp_path / "gone")
    folder = save_dataset(tmp_path / "set", make_rows(range(2), [0, 1], CLASSES))
    (folder / "state.json").write_text("{")
    assert f"{folder} cannot be read" in error_message(folder)


def test_the_librarys_settings_are_restored(tmp_path: Path) -> None:
    import huggingface_hub

    def settings() -> list[Any]:
        names = ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
        bars = [part.utils.are_progress_bars_disabled() for part in (datasets, huggingface_hub)]
        return [getattr(huggingface_hub.constants, name) for name in names] + [
            *bars,
            datasets.logging.get_verbosity(),
            datasets.config.HF_HUB_OFFLINE,
            datasets.config.HF_UPDATE_DOWNLOAD_COUNTS,
        ]

    before = settings()
    error_message(tmp_path / "gone")
    assert settings() == before


@pytest.mark.parametrize(
    "name", ["", "name", "owner/", "../..", "owner/name:", "owner/name:a/b", "owner/name@x", "owner/na me"]
)
def test_a_malformed_name_of_the_hub_is_refused(name: str) -> None:
    assert "a dataset of the hub is written hf:owner/name or hf:owner/name:config, got" in error_message(f"hf:{name}")


def test_without_the_library_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert error_message("hf:a/b") == "hf:a/b needs Hugging Face's datasets; try pip install 'vitrail[datasets]'"


def run_read_hub(tmp_path: Path, endpoint: str, **more: str) -> str:
    script = (
        "from vitrail.errors import VitrailError; from vitrail.data.sources.huggingface import read_hf_dataset\n"
        "try:\n"
        "    source = read_hf_dataset('hf:owner/name')\n    print({split: len(one) for split, one in source.splits.items()})\n"
        "except VitrailError as error:\n    print(error)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
        env=environment | {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": endpoint, "PYTHONPATH": str(ROOT / "src")} | more,
        cwd=tmp_path,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("kind", quick_first(["closed", "silent", "off"]))
def test_a_hub_that_does_not_respond_times_out_soon(kind: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        if kind == "closed":
            server.close()
        output = run_read_hub(tmp_path, endpoint, **{"HF_HUB_OFFLINE": "1"} if kind == "off" else {})
    assert output == "hf:owner/name cannot be downloaded: the hub cannot be reached and the dataset is not in the cache\n"


def test_without_a_network_the_cache_serves(tmp_path: Path) -> None:
    """Use a cache as the library leaves it: built once from a folder of files, then moved to the hub's name."""
    for split in ("train", "test"):
        (tmp_path / "files" / split / "cat").mkdir(parents=True)
        (tmp_path / "files" / split / "dog").mkdir(parents=True)
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / "files" / split / name / "a.png").write_bytes(image_bytes(number))
    home = tmp_path / "home" / "datasets"
    rows = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "files"), cache_dir=str(tmp_path / "made"))
    (version,) = (tmp_path / "made" / "imagefolder").glob("*/0.0.0")
    target = home / "owner___name" / "default"
    target.mkdir(parents=True)
    del rows
    built = next(path for path in version.iterdir() if path.is_dir())
    for path in built.glob("imagefolder-*.arrow"):
        path.rename(path.with_name(path.name.replace("imagefolder", "name")))
    info = built / "dataset_info.json"
    metadata = json.loads(info.read_text())
    info.write_text(json.dumps(metadata | {"config_name": "default", "dataset_name": "name"}))
    version.rename(target / "0.0.0")
    assert run_read_hub(tmp_path, "http://127.0.0.1:9") == "{'train': 2, 'test': 2}\n"
