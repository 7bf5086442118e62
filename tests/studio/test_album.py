"""Every image has an id that reveals no path, and invalid or missing images get an error message."""

import io
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.train.small_run import draw, recipe
from vitrail.data.check import Checked
from vitrail.data.decode import as_picture
from vitrail.data.sources.open import pictures
from vitrail.data.sources.panes import CLASSES, panes
from vitrail.data.sources.source import Data, Progress
from vitrail.errors import VitrailError
from vitrail.studio import album as studio_album
from vitrail.studio import opening as studio_opening
from vitrail.studio import uploads
from vitrail.studio.album import Album
from vitrail.studio.samples import SAMPLES
from vitrail.train.data import opened
from vitrail.train.recipe import Recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("some where") / "birds"
    draw(made, classes=3, each=11)
    (made / "class 1" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    return made


@pytest.fixture(scope="module")
def album(folder: Path) -> Album:
    return Album([mine(folder), "panes:count=40,size=16", str(folder / "nothing here")])


def mine(folder: Path) -> Recipe:
    return recipe(data=str(folder), validation=0.2, test=0.3)


def encoded(picture: Image.Image, kind: str = "PNG", **how: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **how)
    return stream.getvalue()


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def shown(png: bytes) -> Image.Image:
    made = Image.open(io.BytesIO(png), formats=["PNG"])
    made.load()
    return made


def test_the_datasets_are_listed_and_a_missing_one_has_an_error(album: Album, folder: Path) -> None:
    samples, birds, windows, missing = album.albums()
    assert samples == {"id": "samples", "title": "samples", "splits": [{"name": "all", "count": SAMPLES}]}
    assert (birds["id"], birds["title"]) == ("d0", "birds")
    counts = {name: len(part) for name, part in opened(mine(folder)).data.splits.items()}
    assert {split["name"]: split["count"] for split in birds["splits"]} == counts
    assert sum(counts.values()) == 33  # without the damaged one
    assert windows["title"] == "panes:count=40,size=16"
    assert (missing["title"], missing["splits"]) == ("nothing here", [])
    assert missing["error"].startswith("there is no ")
    with pytest.raises(VitrailError, match="there is no "):
        album.page("d2", "test", 0, 5)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_images_of_a_recipe_are_those_of_its_run_in_order(album: Album, folder: Path, split: str) -> None:
    source = opened(mine(folder)).data.splits[split]
    page = album.page("d0", split, 0, 60)
    assert page["total"] == len(source) == len(page["images"])
    for index, told in enumerate(page["images"]):
        assert told["id"] == album.data_id(0, split, index) == f"d0-{split}-{index}"
        assert told["title"] == Path(source.where(index)).name
        assert told["label"] == source.names[source.labels[index]]
        assert album.content(told["id"]) == source.content(index)


def test_pages_follow_each_other(album: Album) -> None:
    whole = album.page("d1", "train", 0, 40)["images"]
    assert album.page("d1", "train", 0, 7)["images"] + album.page("d1", "train", 7, 33)["images"] == whole
    assert album.page("d1", "train", 40, 5) == {"total": 40, "images": []}


def test_samples_need_no_dataset_and_are_deterministic() -> None:
    one, two = Album(), Album()
    page = one.page("samples", "all", 0, 60)["images"]
    assert {told["title"] for told in page} == set(CLASSES)
    for told in page:
        pixels = one.content(told["id"])
        assert isinstance(pixels, np.ndarray)
        assert pixels.shape == (256, 256, 3)
        assert np.array_equal(pixels, two.content(told["id"]))
        assert told["label"] == told["title"]
    first = panes("test", 1000, (256, 256))
    assert np.array_equal(one.content("sample-0"), first.content(int(np.flatnonzero(first.labels == 0)[0])))


def test_a_thumbnail_keeps_the_aspect_ratio_and_is_never_enlarged(album: Album) -> None:
    large = album.upload("large.jpg", encoded(noise(300, 700), "JPEG"))["id"]
    small = album.upload("small.png", encoded(noise(20, 9)))["id"]
    assert shown(album.thumbnail(large, 70)).size == (70, 30)
    assert shown(album.thumbnail(small, 64)).size == (9, 20)
    assert (np.asarray(shown(album.thumbnail(small, 64))) == np.asarray(noise(20, 9))).all()
    assert shown(album.thumbnail("sample-0", 100)).size == (100, 100)
    thin = album.upload("thin.png", encoded(noise(1, 3000)))["id"]
    assert shown(album.thumbnail(thin, 100)).size == (100, 1)
    fashion = Album(["fashion"])
    assert shown(fashion.thumbnail("d0-test-3", 64)).tobytes() == as_picture(fashion.content("d0-test-3")).tobytes()
    for size in (15, 1025):
        with pytest.raises(VitrailError, match="from 16 to 1024"):
            album.thumbnail(large, size)


def test_an_upload_is_rotated_by_its_exif_orientation() -> None:
    album, notes = Album(), Image.Exif()
    notes[0x0112] = 6
    told = album.upload("turned.jpg", encoded(noise(24, 40), "JPEG", exif=notes, quality=95))
    assert (told["width"], told["height"]) == (24, 40)
    assert shown(album.thumbnail(told["id"], 64)).size == (24, 40)
    assert as_picture(album.content(told["id"])).size == (24, 40)


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ("cat.png", "cat.png"),
        ("/home/me/cat.png", "cat.png"),
        ("C:\\Users\\me\\cat.png", "cat.png"),
        ("../../cat.png", "cat.png"),
        ("", "image"),
        ("a\x00b\n.png", "a?b?.png"),
    ],
)
def test_the_title_of_an_upload_is_the_name_of_its_file_alone(given: str, title: str) -> None:
    assert Album().upload(given, encoded(noise(5, 7)))["title"] == title


def test_a_long_name_keeps_its_ending() -> None:
    title = Album().upload("x" * 500 + ".png", encoded(noise(5, 7)))["title"]
    assert len(title) <= 120
    assert title.endswith("x.png")


def test_no_title_reveals_a_path(tmp_path: Path) -> None:
    table, folder = tmp_path / "list.csv", tmp_path / "images"
    draw(folder, classes=2, each=4)
    paths = sorted(folder.rglob("*.png"))
    table.write_text("path,label\n" + "".join(f"{path},{path.parent.name}\n" for path in paths))
    album = Album([str(table), str(folder)])
    told = [each for number in range(2) for each in album.page(f"d{number}", "train", 0, 60)["images"]]
    assert told
    assert not [each for each in (*told, *album.albums()) if "/" in each["title"]]


@pytest.mark.parametrize("content", [b"", b"hello", b"GIF89a", b"<svg xmlns='http://www.w3.org/2000/svg'/>"])
def test_a_file_that_is_not_an_image_is_refused_with_the_decoders_message(content: bytes) -> None:
    album = Album()
    with pytest.raises(VitrailError, match=r"^letter\.png cannot be decoded"):
        album.upload("letter.png", content)
    assert len(album.albums()) == 1


def test_too_many_pixels_or_bytes_are_refused_before_they_are_decoded() -> None:
    bomb = encoded(Image.new("1", (20_000, 20_000)))
    with pytest.raises(VitrailError, match=r"pixels"):
        Album().upload("bomb.png", bomb)
    with pytest.raises(VitrailError, match=r"has 16,777,217 bytes, more than the 16,777,216 allowed"):
        Album().upload("long.bin", bytes(2**24 + 1))


def test_equal_uploads_are_one_image_and_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    album = Album()
    ids = [album.upload(f"{number}.png", encoded(noise(6, 5, number)))["id"] for number in range(20)]
    assert album.upload("again.png", encoded(noise(6, 5, 0)))["id"] == ids[0]
    assert album.page("uploads", "all", 0, 1)["images"][0] == {"id": ids[0], "title": "again.png", "label": None}
    album.upload("new.png", encoded(noise(6, 5, 99)))
    assert album.page("uploads", "all", 0, 60)["total"] == 20
    with pytest.raises(VitrailError, match=f"{ids[1]} was uploaded to an earlier studio.*upload it again"):
        album.content(ids[1])
    assert album.title(ids[0]) == "again.png"
    monkeypatch.setattr(uploads, "ALL_UPLOADS", 3 * len(encoded(noise(6, 5, 0))) + 50)
    album.upload("one more.png", encoded(noise(6, 5, 100)))
    assert album.page("uploads", "all", 0, 60)["total"] <= 3


@pytest.mark.parametrize(
    "id", ["", "x", "sample--1", "sample-12", "d0-test-999999", "d9-test-0", "d0-other-0", "../etc", "upload-12", "d0-test-٣"]
)
def test_an_unknown_id_is_refused(album: Album, id: str) -> None:
    for ask in (album.content, album.title, album.label):
        with pytest.raises(VitrailError, match=r"image|datasets"):
            ask(id)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (("samples", "test", 0, 5), "samples has no split 'test'"),
        (("other", "test", 0, 5), "there is no dataset 'other'"),
        (("d0", "all", 0, 5), "try one of train, validation, test"),
        (("d7", "test", 0, 5), "3 datasets"),
        (("samples", "all", -1, 5), "starts at 0"),
        (("samples", "all", 0, 61), "1 to 60"),
    ],
)
def test_an_invalid_page_is_refused(album: Album, asked: tuple[str, str, int, int], sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        album.page(*asked)


def test_equal_datasets_with_equal_splits_are_stored_once(folder: Path) -> None:
    album = Album()
    first = album.include(mine(folder))
    assert album.include(replace(mine(folder), steps=99, name="another")) == first
    assert album.include(replace(mine(folder), test=0.1)) == first + 1
    assert album.include("fashion") == first + 2 == album.include("fashion")


def test_a_deleted_file_is_an_error(tmp_path: Path) -> None:
    draw(tmp_path / "birds", classes=2, each=4)
    album = Album([str(tmp_path / "birds")])
    (told,) = album.page("d0", "train", 0, 1)["images"]
    for path in (tmp_path / "birds").rglob("*.png"):
        path.unlink()
    with pytest.raises(VitrailError, match=f"{told['title']} cannot be read"):
        album.thumbnail(told["id"], 64)


def test_the_python_of_an_image_returns_that_image(tmp_path: Path, folder: Path) -> None:
    draw(tmp_path / "whole", classes=2, each=6)
    (tmp_path / "loose").mkdir()
    for number in range(8):
        noise(6, 5, number).save(tmp_path / "loose" / f"{number}.png")
    whole = recipe(data=str(tmp_path / "whole"), validation=0.2, test=0.3)
    album = Album([mine(folder), whole, "panes:count=40,size=16", str(tmp_path / "loose")])  # the first with a damaged file
    ids = ["sample-11", "d0-train-13", "d0-test-4", "d1-test-1", "d2-validation-3", "d3-train-2"]
    for id in ids:
        told, names = album.python(id), {"vitrail": vitrail}
        exec("\n".join(told["imports"]), names)
        assert np.array_equal(eval(told["python"], names), album.content(id)), told
    upload = album.upload("cat.png", encoded(noise(5, 7)))["id"]
    assert album.python(upload) == {"python": "'cat.png'", "imports": []}


def test_if_a_run_left_out_unlabelled_images_the_python_is_the_title(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fewer(recipe: Recipe, progress: Progress) -> Checked:
        checked = opened(recipe)
        return replace(checked, pictures=checked.pictures + 1)

    monkeypatch.setattr(studio_opening, "opened", fewer)
    album = Album([mine(folder)])
    assert album.python("d0-train-0") == {"python": repr(album.title("d0-train-0")), "imports": []}


def test_a_slow_dataset_blocks_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(name: str, progress: Progress, labelled: bool = True) -> Data:
        progress("checking", 256, 2000)
        go_on.wait()
        return pictures(name)

    monkeypatch.setattr(studio_opening, "pictures", slow)
    monkeypatch.setattr(studio_album, "PATIENCE", 0.05)
    album = Album(["panes:count=40,size=16", "panes:count=50,size=16"])
    samples, first, second = album.albums()
    assert samples["splits"]
    assert first["error"].startswith("panes:count=40,size=16 is still being opened (checking, 256 of 2,000)")
    assert second["splits"] == []
    go_on.set()
    assert album.page("d1", "train", 0, 1)["total"] == 50  # its own request waits for it
    album.page("d0", "train", 0, 1)
    assert not [each for each in album.albums() if "error" in each]


def test_a_failing_dataset_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, progress: Progress) -> Data:
        raise RuntimeError("the disk is on fire\nand more")

    monkeypatch.setattr(studio_opening, "pictures", broken)
    album = Album(["fashion"])
    assert album.albums()[1]["error"] == "fashion cannot be opened: the disk is on fire"
    assert album.thumbnail("sample-0", 16)


def test_several_threads_get_equal_results(folder: Path) -> None:
    album, found = Album([mine(folder)]), list[object]()
    ask = lambda: found.append((album.albums(), album.thumbnail("sample-3", 32), album.thumbnail("d0-train-2", 32)))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert all(each == found[0] for each in found)
