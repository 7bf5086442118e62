"""Tests of folders of images and masks: layouts, kinds of masks, classes, what is ignored, and what is left out."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.images import make_image, write_class_folders, write_image
from tests.data.mask_images import HEIGHT, WIDTH, blocks, png, write_mask_folder, write_pair
from vitrail import open_dataset
from vitrail.data.sources.dataset import IGNORED, Dataset, DatasetSplits
from vitrail.data.sources.masks import scan_values
from vitrail.data.sources.masks.voc import CLASSES, palette_colour
from vitrail.errors import VitrailError

VOC_PALETTE = [byte for index in range(256) for byte in palette_colour(index).to_bytes(3, "big")]
PETS = Path(__file__).parents[5] / "shared" / "real" / "pets"


def by_name(dataset: Dataset) -> dict[str, int]:
    return {Path(dataset.describe(index)).stem: index for index in range(len(dataset))}


def mask_of(data: DatasetSplits, stem: str) -> np.ndarray:
    split = next(split for split in data.splits.values() if stem in by_name(split))
    return split.mask(by_name(split)[stem])


@pytest.mark.parametrize(
    ("image", "mask"),
    [
        ("train/images/{}.jpg", "train/masks/{}.png"),
        ("images/train/{}.jpg", "labels/train/{}.png"),
        ("train/Images/{}.jpg", "train/SegmentationClass/{}_mask.png"),
        ("train/imgs/{}.png", "train/annotations/{}.tif"),
        ("leftImg8bit/train/ulm/{}_leftImg8bit.png", "gtFine/train/ulm/{}_gtFine_labelIds.png"),
        ("train/{}.png", "train_labels/{}_L.png"),
        ("train/{}.jpg", "train/{}_mask.png"),
        ("train/images/image_{}.jpg", "train/ground_truth/mask_{}.bmp"),
        ("train/images/{}.jpg", "train/gt/{}.jpg.png"),
    ],
)
def test_layouts_are_found(tmp_path: Path, image: str, mask: str) -> None:
    """Every layout gives the same pairs, splits and masks."""
    expected = {}
    for number, split in enumerate(["train"] * 5 + ["val"] * 2):
        names = [text.replace("train", split).format(f"a{number}") for text in (image, mask)]
        expected[number] = (split, write_pair(tmp_path / names[0], tmp_path / names[1], number))
    data = open_dataset(tmp_path)
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 5, "validation": 2, "test": 0}
    assert data.class_names == ("class 0", "class 1", "class 2")
    for split, part in data.splits.items():
        for index in range(len(part)):
            number = next(each for each in expected if f"a{each}" in part.describe(index))
            assert expected[number][0] == {"train": "train", "validation": "val"}[split]
            np.testing.assert_array_equal(part.mask(index), expected[number][1])


def test_a_folder_without_splits_is_split_by_content(tmp_path: Path) -> None:
    for number in range(30):
        write_pair(tmp_path / f"images/{number}.jpg", tmp_path / f"masks/{number}.png", number)
    data = open_dataset(tmp_path)
    assert sum(map(len, data.splits.values())) == 30
    assert len(data.train) < 30
    for number in range(30):
        np.testing.assert_array_equal(mask_of(data, str(number)), blocks(number, (0, 1, 2)))


def test_several_masks_of_an_image_are_ranked(tmp_path: Path) -> None:
    """Of a scene with labels, colours and instances, the labels are read."""
    for number in range(3):
        stem = f"gtFine/train/ulm/{number}_gtFine_"
        write_pair(tmp_path / f"leftImg8bit/train/ulm/{number}_leftImg8bit.png", tmp_path / f"{stem}labelIds.png", number)
        (tmp_path / f"{stem}color.png").write_bytes(png(np.zeros((HEIGHT, WIDTH, 3), np.uint8)))
        (tmp_path / f"{stem}instanceIds.png").write_bytes(png(np.full((HEIGHT, WIDTH), 26001)))
    data = open_dataset(tmp_path)
    assert data.class_names == ("class 0", "class 1", "class 2")
    assert not data.left_out


def test_two_masks_of_an_image_are_refused(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    (tmp_path / "train/masks/0.tif").write_bytes(png(blocks(0, (0, 1)), format="TIFF"))
    with pytest.raises(VitrailError, match=r"train/images/0.jpg has two masks, .*0.* and .*0.*; keep one"):
        open_dataset(tmp_path)


def test_names_that_do_not_fit_are_one_sentence(tmp_path: Path) -> None:
    write_pair(tmp_path / "images/cat.jpg", tmp_path / "masks/0001.png", 0)
    with pytest.raises(VitrailError, match=r"no image below .* images/cat.jpg and masks/0001.png; name each mask as its image"):
        open_dataset(tmp_path)


# Kinds of masks ------------------------------------------------------------------------------------------------------


def test_palettes_are_only_colours(tmp_path: Path) -> None:
    """The classes of a mask with a palette are its indices, as of the same mask in grey."""
    for number in range(4):
        palette = VOC_PALETTE if number % 2 else None
        write_pair(tmp_path / f"images/{number}.jpg", tmp_path / f"masks/{number}.png", number, (0, 3, 7), palette=palette)
    data = open_dataset(tmp_path)
    assert data.class_names == ("class 0", "class 3", "class 7")
    for number in range(4):
        np.testing.assert_array_equal(mask_of(data, str(number)), np.searchsorted([0, 3, 7], blocks(number, (0, 3, 7))))


def test_colours_with_and_without_a_legend(tmp_path: Path) -> None:
    """Colours are classes named by colour; with a legend the same pixels have its names, in its order."""
    colours = np.array([[0, 0, 0], [128, 0, 64], [255, 255, 0]], np.uint8)
    for number in range(4):
        write_image(tmp_path / f"images/{number}.jpg", number, (HEIGHT, WIDTH))
        (tmp_path / "masks").mkdir(exist_ok=True)
        (tmp_path / f"masks/{number}.png").write_bytes(png(colours[blocks(number, (0, 1, 2))]))
    plain = open_dataset(tmp_path)
    assert plain.class_names == ("#000000", "#800040", "#ffff00")
    assert "named by their colours" in plain.notes[0]
    (tmp_path / "class_dict.csv").write_text("name,r,g,b\nsign,255,255,0\ntree,128,0,64\nVoid,0,0,0\n")
    named = open_dataset(tmp_path)
    assert named.class_names == ("sign", "tree")
    for number in range(4):
        expected = np.array([IGNORED, 1, 0])[blocks(number, (0, 1, 2))]
        np.testing.assert_array_equal(mask_of(named, str(number)), expected)
    assert "#000000 (" in named.notes[0]
    assert "is ignored" in named.notes[0]


def test_grey_saved_as_rgb_is_an_index(tmp_path: Path) -> None:
    for number in range(3):
        write_image(tmp_path / f"images/{number}.jpg", number, (HEIGHT, WIDTH))
        (tmp_path / "masks").mkdir(exist_ok=True)
        grey = blocks(number, (0, 1, 2)).astype(np.uint8)
        (tmp_path / f"masks/{number}.png").write_bytes(png(np.repeat(grey[..., None], 3, axis=2)))
    data = open_dataset(tmp_path)
    assert data.class_names == ("class 0", "class 1", "class 2")
    np.testing.assert_array_equal(mask_of(data, "1"), blocks(1, (0, 1, 2)))


@pytest.mark.parametrize("values", [(0, 1), (0, 255)])
def test_two_values_are_background_and_foreground(tmp_path: Path, values: tuple[int, int]) -> None:
    data = open_dataset(write_mask_folder(tmp_path, values=values))
    assert data.class_names == ("background", "foreground")
    np.testing.assert_array_equal(mask_of(data, "0"), blocks(0, values) > 0)


def test_shades_of_black_and_white_are_two_classes(tmp_path: Path) -> None:
    """A mask of black and white that was saved as JPEG is the one that was meant, and it is said."""
    for number in range(4):
        write_image(tmp_path / f"images/{number}.jpg", number, (48, 60))
        (tmp_path / "masks").mkdir(exist_ok=True)
        meant = blocks(number, (0, 255), (48, 60))
        Image.fromarray(meant.astype(np.uint8)).save(tmp_path / f"masks/{number}.jpg", quality=90)
    data = open_dataset(tmp_path)
    assert data.class_names == ("background", "foreground")
    assert "from 128 on" in data.notes[0]
    np.testing.assert_array_equal(mask_of(data, "2"), blocks(2, (0, 255), (48, 60)) > 0)


def test_sixteen_bits(tmp_path: Path) -> None:
    data = open_dataset(write_mask_folder(tmp_path, values=(0, 300, 32000, 65535)))
    assert data.class_names == ("class 0", "class 300", "class 32000")
    expected = np.array([0, 1, 2, IGNORED])[np.searchsorted([0, 300, 32000, 65535], blocks(0, (0, 300, 32000, 65535)))]
    np.testing.assert_array_equal(mask_of(data, "0"), expected)


# Classes and what is ignored -----------------------------------------------------------------------------------------


def test_255_is_ignored_if_other_values_are_far_below(tmp_path: Path) -> None:
    data = open_dataset(write_mask_folder(tmp_path, values=(0, 1, 15, 255)))
    assert data.class_names == ("class 0", "class 1", "class 15")
    assert "; 255 (" in data.notes[0]
    assert "counted in all 12 masks" in data.notes[0]
    assert (mask_of(data, "0") == IGNORED).sum() == (blocks(0, (0, 1, 15, 255)) == 255).sum()


def test_255_is_a_class_among_levels_of_grey_and_if_it_is_told(tmp_path: Path) -> None:
    levels = open_dataset(write_mask_folder(tmp_path / "levels", values=(0, 128, 255)))
    assert levels.class_names == ("class 0", "class 128", "class 255")
    told = open_dataset(write_mask_folder(tmp_path / "told", values=(0, 1, 15, 255)), ignore="none")
    assert told.class_names == ("class 0", "class 1", "class 15", "class 255")


@pytest.mark.parametrize("ignore", [15, "15", "class 15", ["15"], "15,255"])
def test_ignored_values_are_recorded(tmp_path: Path, ignore: str | int | list[str | int]) -> None:
    """What is ignored by option is in the columns, with which the masks are read alike."""
    write_mask_folder(tmp_path, values=(0, 1, 15, 255))
    data = open_dataset(tmp_path, ignore=ignore)
    assert data.class_names == ("class 0", "class 1")
    again = open_dataset(tmp_path, columns=data.columns)
    assert (again.columns, again.fingerprint) == (data.columns, data.fingerprint)
    np.testing.assert_array_equal(mask_of(again, "0"), mask_of(data, "0"))
    assert set(np.unique(mask_of(data, "0"))) == {IGNORED, 0, 1}


@pytest.mark.parametrize("ignore", ["#000000", "cat", "70000"])
def test_what_cannot_be_ignored_is_refused(tmp_path: Path, ignore: str) -> None:
    with pytest.raises(VitrailError, match=r"ignore must be a value .* or a class of .*class 1"):
        open_dataset(write_mask_folder(tmp_path), ignore=ignore)


LEGENDS = {
    "classes.txt": "pet\nbackground\nborder\n",
    "labels.txt": "# a comment\n1 pet\n2 background\n3 border\n",
    "_classes.csv": "Pixel Value, Class\n1, pet\n2, background\n3, border\n",
    "legend.csv": "name,value\npet,1\nbackground,2\nborder,3\n",
    "classes.json": json.dumps({"1": "pet", "2": "background", "3": "border"}),
    "id2label.json": json.dumps([{"id": 1, "name": "pet"}, {"id": 2, "name": "background"}, {"id": 3, "name": "border"}]),
    "label_map.json": json.dumps({"pet": 1, "background": 2, "border": 3}),
}


@pytest.mark.parametrize("name", LEGENDS)
def test_legends_of_values(tmp_path: Path, name: str) -> None:
    """The same three names in every notation."""
    write_mask_folder(tmp_path, values=(1, 2, 3))
    (tmp_path / name).write_text(LEGENDS[name])
    data = open_dataset(tmp_path)
    assert data.class_names == ("pet", "background", "border")
    assert name in data.notes[0]
    np.testing.assert_array_equal(mask_of(data, "0"), blocks(0, (1, 2, 3)) - 1)


@pytest.mark.parametrize(
    ("values", "names"), [((0, 1, 2), "a b c d"), ((1, 2, 3, 4), "a b c d"), ((0, 9, 85), "a b c"), ((0, 1, 255), "a b")]
)
def test_names_without_values_are_in_the_order_of_the_values(tmp_path: Path, values: tuple[int, ...], names: str) -> None:
    write_mask_folder(tmp_path, values=values)
    (tmp_path / "classes.txt").write_text(names.replace(" ", "\n"))
    data = open_dataset(tmp_path)
    assert data.class_names == tuple(names.split())
    expected = {value: place for place, value in enumerate(values) if place < len(names.split())}
    found = np.unique(np.stack([blocks(0, values), mask_of(data, "0")]).reshape(2, -1), axis=1).T.tolist()
    assert [[value, expected.get(value, IGNORED)] for value in values] == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a\nb\n", "has 2 names without values, and the masks of .* have 1, 2, 3; write which is which, as in `1 a`"),
        ("a\nb\nc\nd\ne\n", "has 5 names without values"),
        ("1 a\n1 b\n", "has the value 1 twice"),
        ("1 a\n2 a\n", "has the name 'a' twice"),
        ("1 a\nb\n", "gives a value to some classes and none to 'b'"),
        ("1 2 a\n", "line 1 must have one number or a colour of three besides the name, got 2 numbers"),
        ("300 0 0 a\n", "line 1 must have a colour of three numbers from 0 to 255"),
        ("", "names no class"),
    ],
)
def test_legends_that_cannot_be_meant(tmp_path: Path, text: str, sentence: str) -> None:
    write_mask_folder(tmp_path, values=(1, 2, 3))
    (tmp_path / "classes.txt").write_text(text)
    with pytest.raises(VitrailError, match=f"classes.txt.*{sentence}"):
        open_dataset(tmp_path)


def test_a_value_more_than_there_are_names_is_found_in_its_mask(tmp_path: Path) -> None:
    write_mask_folder(tmp_path, values=(0, 1))
    (tmp_path / "classes.txt").write_text("sky\nroad\n")
    stray = np.array(blocks(0, (0, 1)), np.uint8)
    stray[0, 0] = 7
    (tmp_path / "train/masks/1.png").write_bytes(png(stray))
    with pytest.raises(VitrailError, match=r"classes.txt has 2 names .* 0, 1, 7; .*; 7 is in .*train/masks/1.png, 1 pixel$"):
        open_dataset(tmp_path)


def test_a_folder_for_masks_without_any_is_no_class(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    for mask in tmp_path.glob("*/masks/*"):
        mask.unlink()
    with pytest.raises(VitrailError, match="masks has no masks; it needs a PNG file for each image"):
        open_dataset(tmp_path)
    assert len(open_dataset(tmp_path, labelled=False).train) == 6


def test_masks_of_a_single_class_are_said_to_be_too_few(tmp_path: Path) -> None:
    write_mask_folder(tmp_path, values=(3,))
    notes = " ".join(open_dataset(tmp_path).notes)
    assert "1 class of pixels" in notes
    assert "a single class, 'class 3': segmentation needs at least two" in notes


def test_a_value_that_no_class_has_is_one_sentence(tmp_path: Path) -> None:
    write_mask_folder(tmp_path, values=(0, 1, 7))
    (tmp_path / "classes.txt").write_text("0 sky\n1 road\n")
    data = open_dataset(tmp_path)
    assert "classes.txt does not name: 7" in data.notes[1]
    with pytest.raises(
        VitrailError, match=r"its mask .*masks/0.png has the value 7 in \d+ pixels, which is no class; .*ignore=7"
    ):
        mask_of(data, "0")
    assert set(np.unique(mask_of(open_dataset(tmp_path, ignore=7), "0"))) == {IGNORED, 0, 1}


def test_many_masks_are_sampled_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_values, "MAX_SCANNED", 5)
    write_mask_folder(tmp_path)
    reported: list[tuple[str, int, int | None]] = []
    data = open_dataset(tmp_path, progress=lambda *each: reported.append(each))
    assert "counted in 5 of 12 masks" in data.notes[0]
    assert ("reading masks", 5, 5) in reported
    reported.clear()
    assert open_dataset(tmp_path, progress=lambda *each: reported.append(each)).notes == data.notes
    assert "reading masks" not in {activity for activity, _, _ in reported}  # cached


# What is left out, and faults ----------------------------------------------------------------------------------------


def test_images_without_mask_and_masks_without_image(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    (tmp_path / "train/masks/2.png").unlink()
    (tmp_path / "val/images/7.jpg").unlink()
    data = open_dataset(tmp_path)
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 5, "validation": 2, "test": 3}
    assert {(Path(file.location).name, file.reason, file.split) for file in data.left_out} == {
        ("2.jpg", "has no mask", "train"),
        ("7.png", "is a mask without an image", "validation"),
    }
    assert "1 image has no mask and is left out: train/images/2.jpg" in data.notes


def test_a_split_without_any_mask_is_left_out(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    for mask in (tmp_path / "test/masks").iterdir():
        mask.unlink()
    data = open_dataset(tmp_path)
    assert len(data.test) == 0
    assert not data.left_out
    assert "test is left out: none of its 3 images has a mask" in data.notes


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "cannot be decoded: it is empty"),
        (b"<html>", "cannot be decoded: it is none of PNG"),
        (png(blocks(0, (0, 1, 2)))[:60], "cannot be decoded: .*trunc"),
        (png(blocks(0, (0, 1, 2), (WIDTH, HEIGHT))), "is 24 x 20 pixels, and its image 20 x 24"),
        (png(np.full((HEIGHT, WIDTH), 9)), "has the value 9 in 480 pixels"),
    ],
)
def test_faults_of_masks_name_the_file(tmp_path: Path, content: bytes, sentence: str) -> None:
    write_mask_folder(tmp_path)
    data = open_dataset(tmp_path)
    (tmp_path / "train/masks/0.png").write_bytes(content)
    with pytest.raises(VitrailError, match=f"its mask .*train/masks/0.png {sentence}"):
        mask_of(data, "0")


def test_a_bomb_and_a_deleted_mask(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    data = open_dataset(tmp_path)
    Image.new("L", (10_000, 10_000)).save(tmp_path / "train/masks/0.png")
    with pytest.raises(VitrailError, match=r"its mask .*0.png has more than the 67,108,864 pixels allowed"):
        mask_of(data, "0")
    (tmp_path / "train/masks/1.png").unlink()
    with pytest.raises(VitrailError, match=r"its mask .*1.png cannot be read: No such file"):
        mask_of(data, "1")


@pytest.mark.parametrize("orientation", [6, 8])
def test_masks_of_rotated_images(tmp_path: Path, orientation: int) -> None:
    """A mask may lie as the upright image, or as the stored one, with which it is turned."""
    write_mask_folder(tmp_path)
    stored = make_image(0, (HEIGHT, WIDTH))
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "train/images/0.jpg", exif=exif)
    data = open_dataset(tmp_path)
    turns = {6: -1, 8: 1}[orientation]
    np.testing.assert_array_equal(mask_of(data, "0"), np.rot90(blocks(0, (0, 1, 2)), turns))
    upright = blocks(5, (0, 1, 2), (WIDTH, HEIGHT))
    (tmp_path / "train/masks/0.png").write_bytes(png(upright))
    np.testing.assert_array_equal(mask_of(data, "0"), upright)


# Other tasks ---------------------------------------------------------------------------------------------------------


def test_masks_beat_class_folders_and_can_be_left_alone(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    assert open_dataset(tmp_path).train.has_mask_targets
    from vitrail.data.sources.columns import Columns

    classes = open_dataset(tmp_path, columns=Columns(masks=False))
    assert classes.class_names == ("images", "masks")
    assert any("folders are classes here" in note for note in classes.notes)
    assert classes.columns.masks is False  # so that it is read alike again
    pretraining = open_dataset(tmp_path, labelled=False)
    assert len(pretraining.train) == 6
    assert not any("/masks/" in pretraining.train.describe(index) for index in range(6))
    assert not open_dataset(write_class_folders(tmp_path / "flat", {"cat": 3, "masks": 3})).train.has_mask_targets


def test_splits_of_their_own_sources_share_their_classes(tmp_path: Path) -> None:
    """Classes that only one of two folders has are numbered alike in both."""
    write_mask_folder(tmp_path / "a", {"train": 3}, values=(0, 2))
    write_mask_folder(tmp_path / "b", {"test": 3}, values=(0, 1, 2), first=5)
    for folder, names in (("a", "0 sky\n2 car\n"), ("b", "0 sky\n1 road\n2 car\n")):
        (tmp_path / folder / "classes.txt").write_text(names)
    data = open_dataset({"train": str(tmp_path / "a"), "test": str(tmp_path / "b")})
    assert data.class_names == ("sky", "road", "car")
    np.testing.assert_array_equal(data.train.mask(0), blocks(0, (0, 2)))
    np.testing.assert_array_equal(data.test.mask(0), blocks(5, (0, 1, 2)))


def test_fingerprint_follows_the_masks(tmp_path: Path) -> None:
    write_mask_folder(tmp_path)
    before = open_dataset(tmp_path).fingerprint
    assert open_dataset(tmp_path, ignore="1").fingerprint != before
    (tmp_path / "classes.txt").write_text("a\nb\nc\n")
    assert open_dataset(tmp_path).fingerprint != before


# Pascal VOC ----------------------------------------------------------------------------------------------------------


def write_voc(root: Path, values: tuple[int, ...] = (0, 12, 15, 255)) -> Path:
    stems = [f"2007_{number:06d}" for number in range(8)]
    for number, stem in enumerate(stems[:7]):
        write_pair(root / f"JPEGImages/{stem}.jpg", root / f"SegmentationClass/{stem}.png", number, values, palette=VOC_PALETTE)
        (root / "SegmentationObject").mkdir(exist_ok=True)
        (root / f"SegmentationObject/{stem}.png").write_bytes(png(blocks(number, (0, 1, 2, 255)), VOC_PALETTE))
    write_image(root / f"JPEGImages/{stems[7]}.jpg", 7)
    lists = root / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("\n".join(stems[:4]))
    (lists / "val.txt").write_text("\n".join(stems[4:6]) + "\n")
    (lists / "trainval.txt").write_text("\n".join(stems[:6]) + "\n")
    return root


def test_pascal_voc(tmp_path: Path) -> None:
    data = open_dataset(write_voc(tmp_path))
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 4, "validation": 2, "test": 0}
    assert data.class_names == CLASSES
    np.testing.assert_array_equal(np.unique(data.train.mask(0)), [IGNORED, 0, 12, 15])
    objects = data.train.instances(0)
    assert objects is not None
    np.testing.assert_array_equal(objects, np.where(blocks(0, (0, 1, 2, 255)) == 255, 0, blocks(0, (0, 1, 2, 255))))
    assert "2 images are in no list of ImageSets/Segmentation, and are not used" in data.notes
    assert not data.left_out


def test_other_classes_in_the_layout_of_pascal_voc(tmp_path: Path) -> None:
    """The 21 names are those of its own palette and values only; a label map names others, by colours."""
    values = open_dataset(write_voc(tmp_path / "values", (0, 1, 30, 255)))
    assert values.class_names == ("class 0", "class 1", "class 30")
    write_voc(tmp_path / "map", (0, 1, 2))
    (tmp_path / "map/labelmap.txt").write_text(
        "# label:color_rgb:parts:actions\nbackground:0,0,0::\nleft arm:0,128,0::\nhand:128,0,0::\n"
    )
    mapped = open_dataset(tmp_path / "map")
    assert mapped.class_names == ("background", "left arm", "hand")
    np.testing.assert_array_equal(mapped.train.mask(0), np.array([0, 2, 1])[blocks(0, (0, 1, 2))])


def test_palette_of_pascal_voc() -> None:
    """The first colours of the published palette."""
    known = ["#000000", "#800000", "#008000", "#808000", "#000080", "#800080", "#008080", "#808080", "#400000"]
    assert [f"#{palette_colour(index):06x}" for index in range(9)] == known
    assert palette_colour(255) == 0xE0E0C0


@pytest.mark.skipif(not PETS.is_dir(), reason="needs the real photographs")
def test_real_trimaps() -> None:
    data = open_dataset(PETS)
    assert data.class_names == ("class 1", "class 2", "class 3")
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 740, "validation": 148, "test": 296}
    with Image.open(PETS / "train/masks/Abyssinian_1.png") as mask:
        np.testing.assert_array_equal(data.train.mask(0), np.asarray(mask).astype(int) - 1)
    image, _ = data.train[0]
    assert image.size == data.train.mask(0).shape[::-1]
