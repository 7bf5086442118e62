"""Every image has an id that reveals no path, and invalid or missing images get an error message."""

import io
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.training.small_run import recipe, write_noise_images
from vitrail.data.dataset_check import DatasetReport
from vitrail.data.decode import to_pil
from vitrail.data.sources.dataset import DatasetSplits, Progress
from vitrail.data.sources.open import open_dataset
from vitrail.data.sources.panes.dataset import PANES_CLASSES, build_panes
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe
from vitrail.studio import image_library, lazy_dataset, uploads
from vitrail.studio.image_library import ImageLibrary
from vitrail.studio.sample_images import NUM_SAMPLES
from vitrail.training.dataset import check_training_data, load_training_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("some where") / "birds"
    write_noise_images(path, classes=3, each=11)
    (path / "class 1" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n torn")
    return path


@pytest.fixture(scope="module")
def library(folder: Path) -> ImageLibrary:
    return ImageLibrary([split_recipe(folder), "panes:train_size=40,size=16", str(folder / "nothing here")])


def split_recipe(folder: Path) -> Recipe:
    return recipe(data=str(folder), val_fraction=0.2, test_fraction=0.3)


def encode_image(image: Image.Image, image_format: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, image_format, **options)
    return stream.getvalue()


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def decode_png(png: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(png), formats=["PNG"])
    image.load()
    return image


def test_the_datasets_are_listed_and_a_missing_one_has_an_error(library: ImageLibrary, folder: Path) -> None:
    samples, birds, windows, missing = library.list_datasets()
    assert samples == {"id": "samples", "title": "samples", "splits": [{"name": "all", "count": NUM_SAMPLES}]}
    assert (birds["id"], birds["title"]) == ("d0", "birds")
    counts = {name: len(part) for name, part in load_training_data(split_recipe(folder)).splits.items()}
    assert {split["name"]: split["count"] for split in birds["splits"]} == counts
    assert sum(counts.values()) == 33  # without the damaged one
    assert windows["title"] == "panes:train_size=40,size=16"
    assert (missing["title"], missing["splits"]) == ("nothing here", [])
    assert missing["error"].startswith("there is no ")
    with pytest.raises(VitrailError, match="there is no "):
        library.page("d2", "test", 0, 5)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_the_images_of_a_recipe_are_those_of_its_run_in_order(library: ImageLibrary, folder: Path, split: str) -> None:
    source = load_training_data(split_recipe(folder)).splits[split]
    page = library.page("d0", split, 0, 60)
    assert page["total"] == len(source) == len(page["images"])
    for index, entry in enumerate(page["images"]):
        assert entry["id"] == library.image_id(0, split, index) == f"d0-{split}-{index}"
        assert entry["title"] == Path(source.describe(index)).name
        assert entry["label"] == source.class_names[source.labels[index]]
        assert library.read(entry["id"]) == source.read(index)


def test_pages_follow_each_other(library: ImageLibrary) -> None:
    whole = library.page("d1", "train", 0, 40)["images"]
    assert library.page("d1", "train", 0, 7)["images"] + library.page("d1", "train", 7, 33)["images"] == whole
    assert library.page("d1", "train", 40, 5) == {"total": 40, "images": []}


def test_samples_need_no_dataset_and_are_deterministic() -> None:
    one, two = ImageLibrary(), ImageLibrary()
    page = one.page("samples", "all", 0, 60)["images"]
    assert {entry["title"] for entry in page} == set(PANES_CLASSES)
    for entry in page:
        pixels = one.read(entry["id"])
        assert isinstance(pixels, np.ndarray)
        assert pixels.shape == (256, 256, 3)
        assert np.array_equal(pixels, two.read(entry["id"]))
        assert entry["label"] == entry["title"]
    first = build_panes("test", 1000, (256, 256))
    assert np.array_equal(one.read("sample-0"), first.read(int(np.flatnonzero(first.labels == 0)[0])))


def test_a_thumbnail_keeps_the_aspect_ratio_and_is_never_enlarged(library: ImageLibrary) -> None:
    large = library.upload("large.jpg", encode_image(noise(300, 700), "JPEG"))["id"]
    small = library.upload("small.png", encode_image(noise(20, 9)))["id"]
    assert decode_png(library.thumbnail(large, 70)).size == (70, 30)
    assert decode_png(library.thumbnail(small, 64)).size == (9, 20)
    assert (np.asarray(decode_png(library.thumbnail(small, 64))) == np.asarray(noise(20, 9))).all()
    assert decode_png(library.thumbnail("sample-0", 100)).size == (100, 100)
    thin = library.upload("thin.png", encode_image(noise(1, 3000)))["id"]
    assert decode_png(library.thumbnail(thin, 100)).size == (100, 1)
    fashion = ImageLibrary(["fashion"])
    assert decode_png(fashion.thumbnail("d0-test-3", 64)).tobytes() == to_pil(fashion.read("d0-test-3")).tobytes()
    for size in (15, 1025):
        with pytest.raises(VitrailError, match="from 16 to 1024"):
            library.thumbnail(large, size)


def test_an_upload_is_rotated_by_its_exif_orientation() -> None:
    library, notes = ImageLibrary(), Image.Exif()
    notes[0x0112] = 6
    entry = library.upload("turned.jpg", encode_image(noise(24, 40), "JPEG", exif=notes, quality=95))
    assert (entry["width"], entry["height"]) == (24, 40)
    assert decode_png(library.thumbnail(entry["id"], 64)).size == (24, 40)
    assert to_pil(library.read(entry["id"])).size == (24, 40)


@pytest.mark.parametrize(
    ("file_name", "title"),
    [
        ("cat.png", "cat.png"),
        ("/home/me/cat.png", "cat.png"),
        ("C:\\Users\\me\\cat.png", "cat.png"),
        ("../../cat.png", "cat.png"),
        ("", "image"),
        ("a\x00b\n.png", "a?b?.png"),
    ],
)
def test_the_title_of_an_upload_is_the_name_of_its_file_alone(file_name: str, title: str) -> None:
    assert ImageLibrary().upload(file_name, encode_image(noise(5, 7)))["title"] == title


def test_a_long_name_keeps_its_ending() -> None:
    title = ImageLibrary().upload("x" * 500 + ".png", encode_image(noise(5, 7)))["title"]
    assert len(title) <= 120
    assert title.endswith("x.png")


def test_no_title_reveals_a_path(tmp_path: Path) -> None:
    table, folder = tmp_path / "list.csv", tmp_path / "images"
    write_noise_images(folder, classes=2, each=4)
    paths = sorted(folder.rglob("*.png"))
    table.write_text("path,label\n" + "".join(f"{path},{path.parent.name}\n" for path in paths))
    library = ImageLibrary([str(table), str(folder)])
    entry = [each for number in range(2) for each in library.page(f"d{number}", "train", 0, 60)["images"]]
    assert entry
    assert not [each for each in (*entry, *library.list_datasets()) if "/" in each["title"]]


@pytest.mark.parametrize("content", [b"", b"hello", b"GIF89a", b"<svg xmlns='http://www.w3.org/2000/svg'/>"])
def test_a_file_that_is_not_an_image_is_refused_with_the_decoders_message(content: bytes) -> None:
    library = ImageLibrary()
    with pytest.raises(VitrailError, match=r"^letter\.png cannot be decoded"):
        library.upload("letter.png", content)
    assert len(library.list_datasets()) == 1


def test_too_many_pixels_or_bytes_are_refused_before_they_are_decoded() -> None:
    bomb = encode_image(Image.new("1", (20_000, 20_000)))
    with pytest.raises(VitrailError, match=r"pixels"):
        ImageLibrary().upload("bomb.png", bomb)
    with pytest.raises(VitrailError, match=r"has 16,777,217 bytes, more than the 16,777,216 allowed"):
        ImageLibrary().upload("long.bin", bytes(2**24 + 1))


def test_equal_uploads_are_one_image_and_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ImageLibrary()
    ids = [library.upload(f"{number}.png", encode_image(noise(6, 5, number)))["id"] for number in range(20)]
    assert library.upload("again.png", encode_image(noise(6, 5, 0)))["id"] == ids[0]
    assert library.page("uploads", "all", 0, 1)["images"][0] == {"id": ids[0], "title": "again.png", "label": None}
    library.upload("new.png", encode_image(noise(6, 5, 99)))
    assert library.page("uploads", "all", 0, 60)["total"] == 20
    with pytest.raises(VitrailError, match=f"{ids[1]} was uploaded to an earlier studio.*upload it again"):
        library.read(ids[1])
    assert library.title(ids[0]) == "again.png"
    monkeypatch.setattr(uploads, "MAX_TOTAL_BYTES", 3 * len(encode_image(noise(6, 5, 0))) + 50)
    library.upload("one more.png", encode_image(noise(6, 5, 100)))
    assert library.page("uploads", "all", 0, 60)["total"] <= 3


@pytest.mark.parametrize(
    "id", ["", "x", "sample--1", "sample-12", "d0-test-999999", "d9-test-0", "d0-other-0", "../etc", "upload-12", "d0-test-٣"]
)
def test_an_unknown_id_is_refused(library: ImageLibrary, id: str) -> None:
    for ask in (library.read, library.title, library.label):
        with pytest.raises(VitrailError, match=r"image|datasets"):
            ask(id)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("samples", "test", 0, 5), "samples has no split 'test'"),
        (("other", "test", 0, 5), "there is no dataset 'other'"),
        (("d0", "all", 0, 5), "try one of train, validation, test"),
        (("d7", "test", 0, 5), "3 datasets"),
        (("samples", "all", -1, 5), "starts at 0"),
        (("samples", "all", 0, 61), "1 to 60"),
    ],
)
def test_an_invalid_page_is_refused(library: ImageLibrary, arguments: tuple[str, str, int, int], sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        library.page(*arguments)


def test_equal_datasets_with_equal_splits_are_stored_once(folder: Path) -> None:
    library = ImageLibrary()
    first = library.add_dataset(split_recipe(folder))
    assert library.add_dataset(replace(split_recipe(folder), steps=99, name="another")) == first
    assert library.add_dataset(replace(split_recipe(folder), test_fraction=0.1)) == first + 1
    assert library.add_dataset("fashion") == first + 2 == library.add_dataset("fashion")


def test_a_deleted_file_is_an_error(tmp_path: Path) -> None:
    write_noise_images(tmp_path / "birds", classes=2, each=4)
    library = ImageLibrary([str(tmp_path / "birds")])
    (entry,) = library.page("d0", "train", 0, 1)["images"]
    for path in (tmp_path / "birds").rglob("*.png"):
        path.unlink()
    with pytest.raises(VitrailError, match=f"{entry['title']} cannot be read"):
        library.thumbnail(entry["id"], 64)


def test_the_python_of_an_image_returns_that_image(tmp_path: Path, folder: Path) -> None:
    write_noise_images(tmp_path / "whole", classes=2, each=6)
    (tmp_path / "loose").mkdir()
    for number in range(8):
        noise(6, 5, number).save(tmp_path / "loose" / f"{number}.png")
    whole = recipe(data=str(tmp_path / "whole"), val_fraction=0.2, test_fraction=0.3)
    library = ImageLibrary(
        [split_recipe(folder), whole, "panes:train_size=40,size=16", str(tmp_path / "loose")]
    )  # the first with a damaged file
    ids = ["sample-11", "d0-train-13", "d0-test-4", "d1-test-1", "d2-validation-3", "d3-train-2"]
    for id in ids:
        entry, names = library.python_code(id), {"vitrail": vitrail}
        exec("\n".join(entry["imports"]), names)
        assert np.array_equal(eval(entry["python"], names), library.read(id)), entry
    upload = library.upload("cat.png", encode_image(noise(5, 7)))["id"]
    assert library.python_code(upload) == {"python": "'cat.png'", "imports": []}


def test_if_a_run_left_out_unlabelled_images_the_python_is_the_title(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fewer(data: DatasetSplits, recipe: Recipe, progress: Progress) -> DatasetReport:
        checked = check_training_data(data, recipe)
        return replace(checked, num_images=checked.num_images + 1)

    monkeypatch.setattr(lazy_dataset, "check_training_data", fewer)
    library = ImageLibrary([split_recipe(folder)])
    assert library.python_code("d0-train-0") == {"python": repr(library.title("d0-train-0")), "imports": []}


def test_a_slow_dataset_blocks_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def slow(name: str, progress: Progress, labelled: bool = True) -> DatasetSplits:
        progress("checking", 256, 2000)
        go_on.wait()
        return open_dataset(name)

    monkeypatch.setattr(lazy_dataset, "open_dataset", slow)
    monkeypatch.setattr(image_library, "DATASET_LIST_TIMEOUT", 0.05)
    library = ImageLibrary(["panes:train_size=40,size=16", "panes:train_size=50,size=16"])
    samples, first, second = library.list_datasets()
    assert samples["splits"]
    assert first["error"].startswith("panes:train_size=40,size=16 is still being opened (checking, 256 of 2,000)")
    assert second["splits"] == []
    go_on.set()
    assert library.page("d1", "train", 0, 1)["total"] == 50  # its own request waits for it
    library.page("d0", "train", 0, 1)
    assert not [each for each in library.list_datasets() if "error" in each]


def test_a_failing_dataset_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, progress: Progress) -> DatasetSplits:
        raise RuntimeError("the disk is on fire\nand more")

    monkeypatch.setattr(lazy_dataset, "open_dataset", broken)
    library = ImageLibrary(["fashion"])
    assert library.list_datasets()[1]["error"] == "fashion cannot be opened: the disk is on fire"
    assert library.thumbnail("sample-0", 16)


def test_several_threads_get_equal_results(folder: Path) -> None:
    library, result = ImageLibrary([split_recipe(folder)]), list[object]()

    def ask() -> None:
        result.append((library.list_datasets(), library.thumbnail("sample-3", 32), library.thumbnail("d0-train-2", 32)))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(result) == 6
    assert all(each == result[0] for each in result)
