"""Tests of the check of a dataset of masks: whatever is wrong with one is found and named before training."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.images import write_image
from tests.data.mask_images import HEIGHT, WIDTH, blocks, png, write_mask_folder, write_pair
from vitrail import open_dataset
from vitrail.cli.main import run
from vitrail.data import mask_index
from vitrail.data.dataset_check import check_dataset, drop_unusable
from vitrail.data.sources.dataset import IGNORED
from vitrail.data.sources.masks.voc import palette_colour
from vitrail.errors import VitrailError


def test_pixels_are_counted_as_by_hand(tmp_path: Path) -> None:
    data = open_dataset(write_mask_folder(tmp_path, values=(0, 1, 2, 255)))
    report = check_dataset(data)
    assert report.masks is not None
    for split, part in data.splits.items():
        masks = np.stack([part.mask(index) for index in range(len(part))])
        for label, name in enumerate(data.class_names):
            assert report.masks.pixels[name][split] == (masks == label).sum()
            assert report.masks.images[name][split] == report.classes[name][split] == (masks == label).any((1, 2)).sum()
            assert report.masks.fraction(name, split) == pytest.approx((masks == label).sum() / (masks != IGNORED).sum())
        assert report.masks.ignored[split] == (masks == IGNORED).sum()
    assert report.ok


def test_every_fault_is_named(tmp_path: Path) -> None:
    """A truncated file, another size, an unknown value, a deleted file: each image once, with the file of its mask."""
    write_mask_folder(tmp_path, {"train": 8, "val": 4})
    (tmp_path / "classes.txt").write_text("0 a\n1 b\n2 c\n")
    masks = tmp_path / "train/masks"
    (masks / "0.png").write_bytes(png(blocks(0, (0, 1)))[:70])
    (masks / "1.png").write_bytes(png(blocks(1, (0, 1), (WIDTH, HEIGHT))))
    (masks / "2.png").write_bytes(png(blocks(2, (0, 1, 5))))
    (masks / "3.png").write_bytes(png(np.full((HEIGHT, WIDTH, 3), (9, 0, 0), np.uint8)))
    data = open_dataset(tmp_path)
    (masks / "4.png").unlink()
    report = check_dataset(data)
    reasons = {Path(bad.location).stem: bad.reason for bad in report.bad}
    assert list(reasons) == ["0", "1", "2", "3", "4"]
    for stem, reason in zip(
        reasons, ("cannot be decoded", "is 24 x 20 pixels", "has the value 5", "has colours", "cannot be read"), strict=True
    ):
        assert f"{stem}.png {reason}" in reasons[stem]
    assert len(report.data.train) == 3
    with pytest.raises(VitrailError, match=r"5 of 12 images cannot be used, .* first .*0.jpg, which cannot be used: its mask"):
        drop_unusable(data)
    assert len(drop_unusable(data, max_bad_fraction=0.5).data.train) == 3


def test_few_bad_masks_are_dropped_before_training(tmp_path: Path) -> None:
    data = open_dataset(write_mask_folder(tmp_path))
    (tmp_path / "train/masks/3.png").write_bytes(b"<html>")
    report = drop_unusable(data)
    assert [Path(bad.location).name for bad in report.bad] == ["3.jpg"]
    assert len(report.data.train) == 5


def test_leaks_and_conflicts(tmp_path: Path) -> None:
    """The same image in two splits is found as ever; with another mask it is a conflict."""
    write_mask_folder(tmp_path)
    write_image(tmp_path / "val/images/6.jpg", 0, (HEIGHT, WIDTH))
    (tmp_path / "val/masks/6.png").write_bytes(png(blocks(0, (0, 1, 2))))
    write_image(tmp_path / "train/images/2.jpg", 1, (HEIGHT, WIDTH))
    report = check_dataset(open_dataset(tmp_path))
    assert [[Path(each).name for each in group.locations] for group in report.leaks] == [["0.jpg", "6.jpg"]]
    assert [[Path(each).name for each in group.locations] for group in report.conflicts] == [["1.jpg", "2.jpg"]]


def test_uniform_and_empty_masks_are_not_missing(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    (tmp_path / "train/masks/0.png").write_bytes(png(np.zeros((HEIGHT, WIDTH))))
    (tmp_path / "train/masks/1.png").write_bytes(png(np.full((HEIGHT, WIDTH), 255)))
    (tmp_path / "train/masks/2.png").unlink()
    report = check_dataset(open_dataset(tmp_path))
    assert report.masks is not None
    assert report.masks.uniform == {"train": 1, "validation": 0, "test": 0}
    assert report.masks.empty == {"train": 1, "validation": 0, "test": 0}
    assert [Path(file.location).name for file in report.data.left_out] == ["2.jpg"]
    assert not report.ok


def test_classes_that_never_occur_in_a_split(tmp_path: Path) -> None:
    write_mask_folder(tmp_path / "x", {"train": 4}, values=(0, 1, 2))
    write_mask_folder(tmp_path / "x", {"val": 3}, values=(0, 1), first=4)
    report = check_dataset(open_dataset(tmp_path / "x"))
    assert report.masks is not None
    assert report.masks.absent == {"validation": ("class 2",)}


def test_a_palette_that_was_saved_as_rgb_and_shades_are_doubted(tmp_path: Path) -> None:
    colours = np.array([[*palette_colour(index).to_bytes(3, "big")] for index in range(16)], np.uint8)
    for number in range(3):
        write_image(tmp_path / f"rgb/images/{number}.jpg", number, (HEIGHT, WIDTH))
        (tmp_path / "rgb/masks").mkdir(exist_ok=True)
        (tmp_path / f"rgb/masks/{number}.png").write_bytes(png(colours[blocks(number, (0, 1, 15))]))
        write_image(tmp_path / f"shades/images/{number}.jpg", number, (200, 200))
        (tmp_path / "shades/masks").mkdir(exist_ok=True)
        shades = np.where(np.arange(200) < 120, np.arange(200), 0)[None].repeat(200, 0) * (np.arange(200) < 20)[:, None]
        (tmp_path / f"shades/masks/{number}.png").write_bytes(png(shades))
    assert any(
        "of the indices 0, 1, 15: masks of indices were saved as RGB" in note for note in open_dataset(tmp_path / "rgb").notes
    )
    assert any("shades of antialiasing" in note for note in open_dataset(tmp_path / "shades").notes)


def test_255_read_as_a_class_is_doubted(tmp_path: Path) -> None:
    data = open_dataset(write_mask_folder(tmp_path, values=(0, 1, 4, 255)), ignore="none")
    assert any("255 is read as a class" in note and "ignore=255" in note for note in data.notes)


def test_the_second_check_reads_no_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mask_folder(tmp_path)
    first = check_dataset(open_dataset(tmp_path))

    def fail(*_: object) -> None:
        raise AssertionError("a mask was read again")

    monkeypatch.setattr(mask_index, "_read_one", fail)
    again = check_dataset(open_dataset(tmp_path))
    assert (again.masks, again.data.fingerprint) == (first.masks, first.data.fingerprint)
    monkeypatch.undo()
    (tmp_path / "train/masks/0.png").write_bytes(png(blocks(77, (0, 1, 2))))
    assert check_dataset(open_dataset(tmp_path)).data.fingerprint != first.data.fingerprint


def test_the_command_says_it_as_text_json_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mask_folder(tmp_path / "x")
    (tmp_path / "x/train/masks/0.png").unlink()
    (tmp_path / "x/train/masks/1.png").write_bytes(b"")
    page = tmp_path / "check.html"
    for options in ([], ["--json"], ["--page", str(page)]):
        assert run(["data", "check", str(tmp_path / "x"), *options]) == 1
    printed = capsys.readouterr().out
    start = printed.index("{")
    text, found = printed[:start], json.JSONDecoder().raw_decode(printed[start:])[0]
    assert "left out: 1" in text
    assert "its mask" in text
    assert [Path(file["location"]).name for file in found["left_out"]] == ["0.jpg"]
    assert set(found["masks"]) == {"pixels", "ignored", "uniform", "empty"}
    assert sum(by_split["train"] for by_split in found["masks"]["pixels"].values()) == 4 * HEIGHT * WIDTH
    assert "<h2>Classes of pixels</h2>" in page.read_text()
    assert "<h2>Left out (1)</h2>" in page.read_text()


def test_one_class_of_a_pair(tmp_path: Path) -> None:
    """A mask whose image has another size is unusable, whichever of the two is wrong."""
    write_mask_folder(tmp_path, {"train": 30})
    write_pair(tmp_path / "train/images/x.jpg", tmp_path / "train/masks/x.png", 99)
    write_image(tmp_path / "train/images/x.jpg", 99, (10, 12))
    report = drop_unusable(open_dataset(tmp_path))
    assert [bad.reason for bad in report.bad] == [
        f"cannot be used: its mask {tmp_path}/train/masks/x.png is {WIDTH} x {HEIGHT} pixels, and its image 12 x 10"
    ]
