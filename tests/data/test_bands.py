"""Bands from files to a model's input: resized without clipping, normalised in their own units, augmented by geometry only."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image

from tests.data.band_images import make_bands, npy_bytes, tiff_bytes, write_band_folders
from tests.data.images import make_image, write_class_folders
from vitrail.augment.policy import Policy, get_policy
from vitrail.cli.main import run
from vitrail.data.band_files import BandFormat
from vitrail.data.band_statistics import find_bands, measure_bands
from vitrail.data.band_view import draw_bands, to_view
from vitrail.data.batch_transforms import CustomTransform, EvalTransform, PixelTransform, TrainTransform
from vitrail.data.dataset_check import check_dataset
from vitrail.data.decode import decode_bands
from vitrail.data.pack_reader import read_pack
from vitrail.data.pack_writer import write_pack
from vitrail.data.preprocess import Preprocess
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.dataset import ArrayDataset, Dataset
from vitrail.data.sources.open import open_dataset
from vitrail.data.transforms import to_pixels
from vitrail.errors import VitrailError
from vitrail.inference.inputs import ImageList

RAW = Preprocess((8, 9), crop_pct=0.9, mean=(100.0, 200.0, 300.0, 400.0, 500.0), std=(20.0, 30.0, 40.0, 50.0, 60.0), raw=True)
FIRST = np.zeros(1, np.int64)


def as_dataset(*images: ndarray) -> ArrayDataset:
    return ArrayDataset(np.stack(images), np.zeros(len(images), np.int64), ("one",))


def test_each_band_is_resized_as_pillow_does_in_floats() -> None:
    image = make_bands(0, (31, 22))
    pixels = to_pixels(tiff_bytes(image), RAW)
    assert pixels.dtype == np.float32
    for band in range(5):  # to cover 8 x 9, enlarged by 1/0.9, then the centre
        plane = Image.fromarray(image[..., band].astype(np.float32)).resize((10, 14), Image.Resampling.BICUBIC)
        assert np.array_equal(pixels[..., band], np.asarray(plane)[3:11, 0:9])


@pytest.mark.parametrize("policy", ["eval", "none"])
def test_bands_are_padded_with_their_mean_and_stretched(policy: str) -> None:
    full = np.broadcast_to(np.array(RAW.mean, np.float32) + 1000, (6, 18, 5)).copy()
    padded = TrainTransform(RAW.with_fit("pad"), get_policy(policy))(as_dataset(full), FIRST, FIRST).images
    values = {round(value, 3) for value in padded[0, 3].unique().tolist()}
    assert values == {0.0, 20.0}  # the mean, and the image
    stretched = EvalTransform(RAW.with_fit("stretch"))(as_dataset(full), FIRST, FIRST).images
    assert torch.allclose(stretched[0, 3], torch.tensor(20.0))


def test_resized_bands_go_beyond_the_range_of_the_data() -> None:
    step = np.zeros((20, 20, 5), np.uint16)
    step[:, 10:] = 60_000
    pixels = to_pixels(npy_bytes(step), RAW)
    assert pixels.min() < 0  # the bicubic filter overshoots, and no unit ends at 0
    assert pixels.max() > 60_000


def test_bands_are_normalised_in_their_own_units() -> None:
    dataset = as_dataset(make_bands(1, (8, 9)).astype(np.float32))
    same_size = Preprocess((8, 9), mean=RAW.mean, std=RAW.std, raw=True)
    (image,) = EvalTransform(same_size)(dataset, FIRST, FIRST).images
    expected = (dataset.images[0] - np.array(RAW.mean)) / np.array(RAW.std)
    assert np.allclose(image.permute(1, 2, 0), expected, atol=1e-5)


def test_bands_of_eight_bits_are_preprocessed_like_an_image_of_eight_bits() -> None:
    image = make_image(3, (24, 20))
    eight = Preprocess((12, 10), interpolation="bilinear", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    mean, std = (tuple(255 * value for value in values) for values in (eight.mean, eight.std))
    raw = Preprocess((12, 10), interpolation="bilinear", mean=mean, std=std, raw=True)
    assert raw.mean_of_255 == pytest.approx(eight.mean)
    source = ImageList([image])
    rounded, exact = (EvalTransform(how)(source, FIRST, FIRST).images for how in (eight, raw))
    assert torch.allclose(rounded, exact, atol=1.01 / 255 / 0.1)  # rounded after rows and after columns


@pytest.mark.parametrize("stored", ["array", "tiff", "npy"])
@pytest.mark.parametrize("policy", ["none", "pad", "strong2", "textbook"])
def test_a_training_batch_is_a_pure_function_of_its_indices(stored: str, policy: str) -> None:
    images = [make_bands(number, (8, 9)).astype(np.float32) for number in range(4)]
    files = [tiff_bytes(image) if stored == "tiff" else npy_bytes(image) for image in images]
    source: Dataset = as_dataset(*images) if stored == "array" else ImageList(files)
    how = Preprocess((8, 9), mean=RAW.mean, std=RAW.std, raw=True)
    transform = TrainTransform(how, get_policy(policy), seed=3)
    indices, epochs = np.array([2, 0, 3]), np.array([0, 1, 5])
    batch = transform(source, epochs, indices).images
    assert batch.shape == (3, 5, 8, 9)
    assert batch.isfinite().all()
    assert torch.equal(batch[1:2], transform(source, epochs[1:2], indices[1:2]).images)
    assert not torch.equal(batch, transform(source, epochs + 1, indices).images)


def test_colours_are_left_as_they_are_and_geometry_is_not() -> None:
    image = make_bands(5, (8, 9)).astype(np.float32)
    how, still = Preprocess((8, 9), mean=RAW.mean, std=RAW.std, raw=True), {"crop": "none", "hflip": 0.0}
    plain = EvalTransform(how)(as_dataset(image), FIRST, FIRST).images
    policy = Policy(**still, randaug_layers=1, randaug_magnitude=10.0)  # type: ignore[arg-type]
    batches = [TrainTransform(how, policy)(as_dataset(image), FIRST + epoch, FIRST).images for epoch in range(40)]
    unchanged = sum(torch.equal(batch, plain) for batch in batches)
    assert 12 <= unchanged <= 32  # 10 of 16 operations are for colours
    sheared = [batch for batch in batches if not torch.equal(batch, plain)]
    values = torch.cat([plain.flatten(2), torch.zeros(1, 5, 1)], 2)  # what comes from outside is the mean
    for batch in sheared:
        for band in range(5):
            assert (batch[0, band].flatten()[:, None] - values[0, band]).abs().min(1).values.max() < 1e-4


def test_the_padding_of_a_shifted_image_is_its_mean() -> None:
    how = Preprocess((8, 9), mean=RAW.mean, std=RAW.std, raw=True)
    full = np.broadcast_to(np.array(RAW.mean, np.float32) + 1000, (8, 9, 5)).copy()
    padded = TrainTransform(how, Policy(crop="pad", pad=4, hflip=0.0), seed=1)(as_dataset(full), FIRST + 2, FIRST).images
    assert set(padded[0, 0].unique().tolist()) <= {0.0, 50.0}
    assert (padded == 0).any()


def test_a_function_of_ones_own_gets_the_bands() -> None:
    image, seen = make_bands(6, (8, 9)), []
    how = Preprocess((8, 9), mean=RAW.mean, std=RAW.std, raw=True)

    def flip(bands: ndarray) -> ndarray:
        seen.append(bands)
        return bands[:, ::-1]

    flipped = CustomTransform(how, flip)(ImageList([npy_bytes(image)]), FIRST, FIRST).images
    assert np.array_equal(seen[0], image)
    assert torch.equal(flipped.flip(3), EvalTransform(how)(ImageList([npy_bytes(image)]), FIRST, FIRST).images)
    with pytest.raises(VitrailError, match=r"transform must return the 5 bands as an array \(h w c\)"):
        CustomTransform(how, lambda bands: bands[..., :3])(ImageList([npy_bytes(image)]), FIRST, FIRST)


def test_an_image_with_other_bands_is_unreadable_by_name(tmp_path: Path) -> None:
    folder = write_band_folders(tmp_path / "bands", 5)
    (folder / "dry" / "0.tif").write_bytes(tiff_bytes(make_bands(0, bands=4)))
    (folder / "dry" / "1.tif").write_bytes(tiff_bytes(make_bands(0))[:-5])
    make_image(0).save(folder / "dry" / "2.png")
    report = check_dataset(open_dataset(str(folder)))
    reasons = {Path(bad.location).name: bad.reason for bad in report.bad}
    assert reasons == {
        "0.tif": "has 4 bands, and most of the images have 5",
        "1.tif": "is a truncated TIFF",
        "2.png": "has 3 bands, and most of the images have 5",
    }
    assert report.image_formats == {"TIFF 5 bands of uint16": 8}
    source = ImageList([str(folder / "dry" / name) for name in ("0.tif", "3.tif", "2.png")])
    transformed = PixelTransform(RAW)(source, np.zeros(3, np.int64), np.arange(3))
    assert transformed.readable.tolist() == [False, True, False]
    assert "has 4 bands of uint16, and 5 bands are needed" in transformed.read_errors[0]
    assert "has 8-bit RGB, and 5 bands are needed" in transformed.read_errors[2]


def test_the_mean_and_deviation_are_those_over_all_pixels(tmp_path: Path) -> None:
    folder = write_band_folders(tmp_path / "bands", 40)
    dataset = open_dataset(str(folder)).train
    values = np.concatenate([decode_bands(dataset.read(index)).reshape(-1, 5) for index in range(len(dataset))])
    measured = measure_bands(dataset, 5)
    assert measured.mean == pytest.approx(values.mean(0), rel=1e-5)
    assert measured.std == pytest.approx(values.std(0), rel=1e-5)
    assert measured.num_images == len(dataset)
    assert measured == measure_bands(dataset, 5)
    assert find_bands(dataset) == BandFormat(5, "uint16")


def test_large_means_cost_no_precision_and_constant_bands_have_a_deviation() -> None:
    noise = np.random.default_rng(0).normal(0, 1e-3, (6, 20, 20, 2)).astype(np.float64)
    images = np.concatenate([noise + 1000, np.full((6, 20, 20, 1), 7.0)], 3).astype(np.float32)
    measured = measure_bands(as_dataset(*images), 3)
    assert measured.mean == pytest.approx((1000, 1000, 7), rel=1e-6)
    assert measured.std == pytest.approx((*images[..., :2].astype(np.float64).std((0, 1, 2)), 1.0), rel=1e-4)


def test_most_of_the_images_decide_which_bands_a_dataset_has(tmp_path: Path) -> None:
    assert find_bands(open_dataset(str(write_class_folders(tmp_path / "rgb", {"ant": 4, "bee": 4}))).train) is None
    folder = write_band_folders(tmp_path / "bands", 5)
    make_image(0).save(folder / "dry" / "0.tif")
    (folder / "wet" / "1.tif").write_bytes(b"")
    assert find_bands(open_dataset(str(folder)).train) == BandFormat(5, "uint16")


def test_arrays_of_the_users_own_have_bands() -> None:
    images = [make_bands(number) for number in range(6)]
    dataset = open_dataset([(image, "a") for image in images], labelled=False).train
    assert find_bands(dataset) == BandFormat(5, "uint16")
    contents = {image.tobytes() for image in images}
    assert all(dataset[index][0].tobytes() in contents for index in range(len(dataset)))
    tensors = [(torch.from_numpy(np.moveaxis(image.astype(np.float32), -1, 0)), "a") for image in images]
    assert {image.tobytes() for image, _ in open_dataset(tensors, labelled=False).train} <= {
        image.astype(np.float32).tobytes() for image in images
    }


@pytest.mark.parametrize("size", [None, 7, (9, 8)])
@pytest.mark.parametrize("suffix", [".tif", ".npy"])
def test_a_pack_has_the_bands_in_their_own_type(size: int | tuple[int, int] | None, suffix: str, tmp_path: Path) -> None:
    dataset = open_dataset(str(write_band_folders(tmp_path / "bands", 5, suffix=suffix, size=(9, 11)))).train
    write_pack(tmp_path / "pack", {"train": dataset}, size=size)
    packed = read_pack(tmp_path / "pack")[0]["train"]
    first = packed.read(0)
    assert isinstance(first, ndarray)
    assert first.dtype == np.uint16
    assert find_bands(packed) == BandFormat(5, "uint16")
    original = decode_bands(dataset.read(0))
    if size is None:
        assert np.array_equal(first, original)
    else:
        assert first.shape == ((7, 9, 5) if size == 7 else (9, 8, 5))
        assert np.abs(first.mean((0, 1)) - original.mean((0, 1))).max() < 10


def test_a_pack_of_bands_of_several_sizes(tmp_path: Path) -> None:
    for number, height in enumerate((7, 8, 9)):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.npy").write_bytes(npy_bytes(make_bands(number, (height, 12), dtype="float32")))
    dataset = open_dataset(str(tmp_path), labelled=False).train
    write_pack(tmp_path / "pack", {"train": dataset})
    packed = read_pack(tmp_path / "pack")[0]["train"]
    assert all(np.array_equal(packed.read(index), decode_bands(dataset.read(index))) for index in range(len(dataset)))


def test_shards_have_the_files_or_arrays_of_bands(tmp_path: Path) -> None:
    dataset = open_dataset(str(write_band_folders(tmp_path / "bands", 3))).train
    arrays = as_dataset(*(decode_bands(dataset.read(index)) for index in range(len(dataset))))
    for name, source in (("files", dataset), ("arrays", arrays)):
        write_shards(tmp_path / name, {"train": source})
        sharded = open_dataset(str(tmp_path / name), labelled=False)
        parts = [part for part in sharded.splits.values() if len(part)]
        contents = {decode_bands(part.read(index)).tobytes() for part in parts for index in range(len(part))}
        assert contents == {image.tobytes() for image in arrays.images}


def test_bands_are_drawn_between_robust_percentiles_and_numbered_from_one() -> None:
    images = np.zeros((2, 30, 40, 4), np.float32)
    images[..., 3] = np.arange(1200).reshape(30, 40)
    images[1, 0, 0, 3] = 1e9  # an outlier
    (first, _) = draw_bands(images, (4, 1, 1))
    red, green, _ = np.moveaxis(np.asarray(first), -1, 0)
    assert red[0, 0] == 0
    assert red[-1, -1] == 255
    assert abs(int(red[15, 0]) - 128) < 4
    assert green.max() == 0
    assert draw_bands(images)[0].mode == "RGB"
    assert draw_bands(images[..., 3:])[0].mode == "L"
    for wrong in ((0, 1, 2), (5,), (1, 2)):
        with pytest.raises(VitrailError, match="bands must be one or three numbers from 1 to 4, the image's bands, got"):
            draw_bands(images, wrong)


def test_eight_bit_images_are_drawn_as_they_are() -> None:
    image = np.asarray(make_image(7))
    assert np.array_equal(np.asarray(to_view(npy_bytes(image))), image)
    assert to_view(tiff_bytes(make_bands(0))).size == (11, 13)


def test_the_command_draws_other_bands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_band_folders(tmp_path / "bands", 6))
    drawn = {}
    for bands in ("1,2,3", "3,2,1", "5"):
        out = tmp_path / f"{bands}.png"
        assert (
            run(["data", "show", folder, "--bands", bands, "--augment", "eval", "--image-size", "16", "--out", str(out)]) == 0
        )
        drawn[bands] = np.asarray(Image.open(out))
    sheet = (drawn["1,2,3"] != drawn["3,2,1"]).any(2)
    assert np.array_equal(drawn["1,2,3"][sheet], drawn["3,2,1"][sheet][:, ::-1])
    assert (drawn["5"][:100, :100, 0] == drawn["5"][:100, :100, 2]).mean() > 0.8
    capsys.readouterr()
    for wrong in ("6,1,2", "0", "a"):
        assert run(["data", "show", folder, "--bands", wrong, "--out", str(tmp_path / "no.png")]) == 2
        assert "bands must be one or three numbers" in capsys.readouterr().err
    assert not (tmp_path / "no.png").exists()
