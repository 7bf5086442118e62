"""``vitrail predict`` of a segmentation model: masks as files that are read back, rows of fractions, tiles, faults."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image

import vitrail
from tests.cli.full_disk import full_disk
from tests.data import images as sample_images
from tests.small_models import small_config
from vitrail.cli import main
from vitrail.cli.main import run
from vitrail.data.mask_codes import decode_rle, rasterise
from vitrail.data.preprocess import Preprocess
from vitrail.inference.predict import predict
from vitrail.io import file_lock
from vitrail.models.build import build
from vitrail.models.vit import ViT
from vitrail.plot.class_colours import class_colours
from vitrail.report import coco_masks
from vitrail.tasks.segmentation_model import LinearSegmenter
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]
NAMES = ("sky", "tree, small", "röad")
FILES = ["in/a.jpg", "in/b.png", "in/deep/c.jpg"]


@pytest.fixture(autouse=True)
def _a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save ``run``, and ``in`` with three images."""
    monkeypatch.chdir(tmp_path)
    config = small_config(classes=0)
    encoder = build(config)
    assert isinstance(encoder, ViT)
    model = LinearSegmenter(encoder, 3)
    torch.manual_seed(0)
    torch.nn.init.normal_(model.head.linear.weight)
    encoder.preprocess, encoder.class_names = Preprocess(config.image, 1.0, "stretch"), NAMES
    task = {"kind": "segmentation", "classes": 3}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    metadata = {"recipe": {"task": task}, "dataset": {"name": "x", "fingerprint": "", "image_size": [20, 30]}}
    save(model, tmp_path / "run" / "best", metadata=metadata)
    for number, name in enumerate(FILES):
        sample_images.write_image(tmp_path / name, number, (48, 64 + number))


def expected(**options: Any) -> list[Any]:
    return predict("run", FILES, **options)


def read_mask(path: Path) -> ndarray:
    with Image.open(path) as image:
        assert image.mode == "P"
        assert image.getpalette() == class_colours(3).ravel().tolist()
        return np.asarray(image)


def test_masks_are_index_pngs_of_the_images_sizes_with_the_colours_of_the_classes(tmp_path: Path, capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--out", "masks"]) == 0
    assert capsys.readouterr().out == "3 images, 0 with an error: masks\n"
    for row, name in zip(expected(), "abc", strict=True):
        mask = read_mask(tmp_path / "masks" / f"{name}.png")
        assert mask.shape == (48, 64 + "abc".index(name))
        assert np.array_equal(mask, row.mask)
    legend = json.loads((tmp_path / "masks" / "classes.json").read_text())
    assert [(row["value"], row["name"]) for row in legend] == list(enumerate(NAMES))
    assert [row["colour"] for row in legend] == ["#0072b2", "#e69f00", "#009e73"]
    assert {path.name for path in (tmp_path / "masks").iterdir()} == {
        "a.png",
        "b.png",
        "c.png",
        "classes.json",
        "_predict.json",
        ".lock-0",
    }


def test_the_folder_can_be_read_as_the_masks_of_a_dataset(tmp_path: Path) -> None:
    assert run(["predict", "run", "in", "--out", "masks", "--overlay"]) == 0
    (tmp_path / "in").rename(tmp_path / "images")
    (tmp_path / "images" / "deep" / "c.jpg").rename(tmp_path / "images" / "c.jpg")
    data = vitrail.open_dataset(tmp_path)
    assert data.class_names == NAMES
    assert not any("no image" in note for note in data.notes)  # overlays are no masks
    rows = {Path(row.file).stem: row.mask for row in predict("run", sorted((tmp_path / "images").glob("*.*")))}
    for split in data.splits.values():
        for index in range(len(split)):
            assert np.array_equal(split.mask(index), rows.pop(Path(split.describe(index)).stem))
    assert not rows


def test_overlays_are_drawn_into_the_folder(tmp_path: Path) -> None:
    assert run(["predict", "run", "in", "--out", "masks", "--overlay"]) == 0
    with Image.open(tmp_path / "masks" / "b.overlay.jpg") as overlay, Image.open("in/b.png") as image:
        assert overlay.size == image.size
        drawn = (np.asarray(image.convert("RGB")) + class_colours(3)[read_mask(tmp_path / "masks" / "b.png")].astype(int)) / 2
        assert np.abs(np.asarray(overlay) - drawn).mean() < 12  # it is a JPEG


def test_files_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for name in ("in/deep/a.jpg", "in/deep/c.png", "in/A.png"):
        sample_images.write_image(tmp_path / name, 7)
    assert run(["predict", "run", "in", "--out", "masks"]) == 0
    masks = sorted(str(path.relative_to(tmp_path / "masks")) for path in (tmp_path / "masks").rglob("*.png"))
    assert masks == ["A.png.png", "a.jpg.png", "b.png", "deep/a.png", "deep/c.jpg.png", "deep/c.png.png"]


def test_an_interrupted_folder_is_resumed_for_the_same_request_only(tmp_path: Path, capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--out", "masks"]) == 0
    kept, lost = tmp_path / "masks" / "a.png", tmp_path / "masks" / "c.png"
    time = kept.stat().st_mtime_ns
    content = lost.read_bytes()
    lost.unlink()
    capsys.readouterr()
    assert run(["predict", "run", "in", "--out", "masks", "--batch-size", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": "run", "images": 3, "errors": 0, "out": "masks", "failed": []}
    assert (kept.stat().st_mtime_ns, lost.read_bytes()) == (time, content)
    assert run(["predict", "run", "in/a.jpg", "--out", "masks"]) == 2
    assert "masks was started with another data; name another folder" in capsys.readouterr().err
    assert run(["predict", "run", "in", "--out", "masks", "--tile", "auto"]) == 2
    assert "another tile and overlap" in capsys.readouterr().err


def test_two_processes_do_not_write_the_same_masks(tmp_path: Path, capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--out", "masks"]) == 0
    capsys.readouterr()
    with file_lock(tmp_path / "masks" / ".lock-0"):
        assert run(["predict", "run", "in", "--out", "masks"]) == 2
    assert "another process is writing masks to masks; wait for it, or name another folder" in capsys.readouterr().err


def test_ranks_share_the_masks(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, expected_names in (("1", ["b.png"]), ("0", ["a.png", "b.png", "c.png"])):
        monkeypatch.setenv("RANK", rank)
        assert run(["predict", "run", "in", "--out", "masks"]) == 0
        assert sorted(path.name for path in (tmp_path / "masks").glob("*.png")) == expected_names
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["1", "2"]


def test_a_bad_image_has_no_mask_and_the_exit_code_is_1(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "in" / "aa.jpg").write_bytes(b"")
    assert run(["predict", "run", "in", "gone.jpg", "--out", "masks"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "5 images, 2 with an error: masks\n"
    assert "in/aa.jpg  cannot be decoded: it is empty" in printed.err
    assert "gone.jpg  cannot be read: No such file or directory" in printed.err
    assert sorted(path.name for path in (tmp_path / "masks").glob("*.png")) == ["a.png", "b.png", "c.png"]
    assert run(["predict", "run", "in", "--out", "masks.json", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == [{"file": "in/aa.jpg", "error": "cannot be decoded: it is empty"}]


@pytest.mark.parametrize("max_corners", [10**6, 0])
def test_coco_json_has_the_same_masks(max_corners: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coco_masks, "MAX_CORNERS", max_corners)
    (tmp_path / "out").mkdir()
    assert run(["predict", "run", "in", "--out", "out/masks.json"]) == 0
    content = json.loads((tmp_path / "out" / "masks.json").read_text())
    assert content["categories"] == [{"id": label + 1, "name": name} for label, name in enumerate(NAMES)]
    assert [image["file_name"] for image in content["images"]] == [f"../{name}" for name in FILES]
    for image, row in zip(content["images"], expected(), strict=True):
        size = image["height"], image["width"]
        mask = np.full(size, -1)
        for annotation in (each for each in content["annotations"] if each["image_id"] == image["id"]):
            segmentation = annotation["segmentation"]
            assert isinstance(segmentation, dict if max_corners == 0 else list)
            region = decode_rle(segmentation) if isinstance(segmentation, dict) else rasterise(segmentation, size)
            assert (mask[region] == -1).all()
            mask[region] = annotation["category_id"] - 1
            assert annotation["area"] == region.sum()
            left, top, width, height = annotation["bbox"]
            assert region[top : top + height, left : left + width].sum() == region.sum()
        assert np.array_equal(mask, row.mask)


def test_rows_have_the_fraction_of_each_class(capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    for row, prediction in zip(rows, expected(), strict=True):
        assert (row["file"], row["error"]) == (prediction.file, "")
        assert [float(row[name]) for name in NAMES] == [(prediction.mask == label).mean() for label in range(3)]
    assert run(["predict", "run", "in", "--jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["size"] for line in lines] == [[48, 64], [48, 65], [48, 66]]
    assert [line["classes"] for line in lines] == [prediction.classes for prediction in expected()]
    assert run(["predict", "run", "in", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"] == lines
    assert run(["predict", "run", "in"]) == 0
    assert "64 x 48" in capsys.readouterr().out


def test_tiles_are_those_of_the_function(capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--jsonl", "--tile", "20x30", "--overlap", "0.5"]) == 0
    printed = [json.loads(line)["classes"] for line in capsys.readouterr().out.splitlines()]
    assert printed == [row.classes for row in expected(tile=(20, 30), overlap=0.5)]
    assert run(["predict", "run", "in", "--jsonl", "--tile", "auto", "--overlap", "0.5"]) == 0
    assert [json.loads(line)["classes"] for line in capsys.readouterr().out.splitlines()] == printed
    assert printed != [row.classes for row in expected()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "in"], "masks need a folder of their own, got in with"),
        (["--out", "nowhere/masks"], "masks need a folder, in one that exists, got nowhere/masks; try masks-masks"),
        (["--overlay"], "--overlay needs a folder for the masks: --out masks"),
        (["--out", "masks.json", "--overlay"], "--overlay needs a folder for the masks: --out masks"),
        (["--out", "masks", "--rows-per-file", "3"], "--rows-per-file is for part files, and masks are one file per image"),
        (["--tile", "3"], "tile must be auto, none, or height and width from 8 pixels on, got (3, 3); try --tile 512"),
        (["--tile", "large"], "--tile must be a number or HEIGHTxWIDTH, got 'large'"),
        (["--overlap", "1"], "overlap must be from 0 to 0.9, got 1.0; try --overlap 0.25"),
        (["--out", "masks.png"], "--out is a folder, or a .csv, .jsonl or .json file, got masks.png; try masks"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    arguments: list[str], message: str, tmp_path: Path, capsys: Capture
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert run(["predict", "run", "in", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_a_classifier_has_no_masks_to_write(tmp_path: Path, capsys: Capture) -> None:
    model = build(small_config())
    model.preprocess = Preprocess((12, 15))
    save(model, tmp_path / "classifier")
    assert run(["predict", "classifier", "in", "--out", "masks.json"]) == 2
    assert (
        "--out must end in .csv or .jsonl, got masks.json: .json is for masks and boxes; try masks.jsonl"
        in capsys.readouterr().err
    )
    assert run(["predict", "classifier", "in", "--out", "masks", "--overlay"]) == 2
    assert "--overlay needs a model of masks, and" in capsys.readouterr().err
    assert run(["predict", "classifier", "in", "--tile", "64"]) == 2
    assert "tiles are for models that predict masks" in capsys.readouterr().err


def test_a_full_disk_leaves_no_part_of_a_mask(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_images.write_image(tmp_path / "in" / "a.jpg", 3, (480, 640))
    with full_disk(700, monkeypatch):
        assert run(["predict", "run", "in", "--out", "masks"]) == 1
    assert "File too large" in capsys.readouterr().err
    assert not list((tmp_path / "masks").glob("*.png"))
    assert run(["predict", "run", "in", "--out", "masks"]) == 0
    with full_disk(300, monkeypatch):
        assert run(["predict", "run", "in", "--out", "masks.json"]) == 1
    assert not list(tmp_path.glob("*masks*.json"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_is_one_sentence(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_discard_output", lambda: None)  # it closes stdout, which pytest still needs
    for out in ("/proc/masks", "/proc/masks.json"):
        assert run(["predict", "run", "in", "--out", out]) == 1
        assert capsys.readouterr().err.startswith("vitrail: [Errno ")


def test_several_views_are_averaged_and_a_folder_is_resumed_for_the_same_ones_only(capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--tta", "scales", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert [row["classes"] for row in rows] == [each.classes for each in expected(tta="scales")]
    assert run(["predict", "run", "in", "--tta", "flip", "--out", "masks"]) == 0
    assert run(["predict", "run", "in", "--tta", "scales", "--out", "masks"]) == 2
