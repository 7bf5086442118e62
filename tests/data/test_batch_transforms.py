"""An augmented image is the drawn operations applied in order, each drawn from random numbers of its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from tests.data.images import make_image
from vitrail.augment.counter_rng import random_bits, uniforms
from vitrail.augment.crop import CROP_SLOTS, crop_resize, draw_random_resized_crop
from vitrail.augment.mixup import MIX_SLOTS
from vitrail.augment.policy import Policy, get_policy
from vitrail.augment.randaugment import (
    JITTER_SLOTS,
    OPERATION_SLOTS,
    apply_operation,
    colour_jitter,
    draw_colour_jitter,
    draw_randaugment,
)
from vitrail.augment.random_erasing import ERASE_SLOTS, draw_erase, erase
from vitrail.data import batch_transforms
from vitrail.data.batch_transforms import (
    CROP_OFFSET,
    ERASE_OFFSET,
    FLIP_OFFSET,
    JITTER_OFFSET,
    NOISE_OFFSET,
    RANDAUGMENT_OFFSET,
    TrainTransform,
)
from vitrail.data.decode import decode
from vitrail.data.loader import MIX_OFFSET, build_train_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import ArrayDataset, Dataset
from vitrail.data.transforms import normalise, resize_and_crop
from vitrail.inference.inputs import as_images

PREPROCESS = Preprocess((40, 30), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
SEED, EPOCH = 3, 5


def make_dataset() -> ArrayDataset:
    images = np.stack([np.asarray(make_image(number, (80, 70))) for number in range(6)])
    return ArrayDataset(images, np.arange(6), tuple("abcdef"))


def apply_by_hand(index: int, how: Policy) -> torch.Tensor:
    """Apply by hand: crop, flip, RandAugment, jitter, normalise, erase."""
    key = SEED, np.array([EPOCH]), np.array([index])
    crop = draw_random_resized_crop(
        uniforms(*key, CROP_SLOTS, CROP_OFFSET), np.array([[80, 70]]), how.crop_scale, how.crop_ratio
    )[0].tolist()
    flip = bool(uniforms(*key, 1, FLIP_OFFSET)[0, 0] < how.hflip)
    cropped = crop_resize(make_dataset().images[index], tuple(crop), PREPROCESS.image_size, flip, how.interpolation)
    image = Image.fromarray(cropped.permute(1, 2, 0).contiguous().numpy())
    samples = draw_randaugment(
        uniforms(*key, OPERATION_SLOTS * how.randaug_layers, RANDAUGMENT_OFFSET), how.randaug_layers, how.randaug_magnitude
    )
    for operation, strength, centre in zip(samples.indices[0], samples.strengths[0], samples.centres[0], strict=True):
        image = apply_operation(image, samples.names[operation], float(strength), centre)
    amounts = how.brightness, how.contrast, how.saturation, how.hue
    factors, orders = draw_colour_jitter(uniforms(*key, JITTER_SLOTS, JITTER_OFFSET), *amounts)
    image = colour_jitter(image, factors[0], orders[0])
    normalised = normalise(torch.from_numpy(np.array(image)).permute(2, 0, 1).float(), PREPROCESS)[None]
    boxes = draw_erase(
        uniforms(*key, ERASE_SLOTS, ERASE_OFFSET), how.erase_prob, how.erase_scale, how.erase_ratio, PREPROCESS.image_size
    )
    return erase(normalised, boxes, random_bits(*key, NOISE_OFFSET)[:, 0] if how.erase_noise else None)[0]


ALL_OPERATIONS = get_policy(
    "none", randaug_layers=2, brightness=0.4, contrast=0.3, saturation=0.5, hue=0.2, erase_prob=0.7, erase_noise=True
)


@pytest.mark.parametrize(
    "how", [get_policy("none"), get_policy("strong1", mixup=0.0), ALL_OPERATIONS], ids=["crop", "randaugment", "all"]
)
def test_a_policy_is_its_operations_in_order(how: Policy) -> None:
    indices = np.arange(6)
    transformed = TrainTransform(PREPROCESS, how, SEED)(make_dataset(), np.full(6, EPOCH), indices)
    assert torch.equal(transformed.images, torch.stack([apply_by_hand(index, how) for index in indices.tolist()]))


PADDING = Preprocess((40, 30), fit="pad", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


def train_pixels(dataset: Dataset, how: Policy, epoch: int = EPOCH) -> np.ndarray:
    """Return the pixels of the images of a dataset as training with padding has them."""
    indices = np.arange(len(dataset))
    images = TrainTransform(PADDING, how, SEED)(dataset, np.full(len(dataset), epoch), indices).images
    mean, std = (torch.tensor(values)[:, None, None] for values in (PADDING.mean, PADDING.std))
    return ((images * std + mean) * 255).round().permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("epoch", range(4))
def test_padding_shows_the_whole_image_in_training(epoch: int) -> None:
    """Four colours, one in each corner of a wide image: a crop would lose some of them."""
    corners = np.array([[(255, 0, 0), (0, 255, 0)], [(0, 0, 255), (255, 255, 255)]], np.uint8)
    wide = corners.repeat(30, axis=0).repeat(90, axis=1)
    pixels = train_pixels(ArrayDataset(np.stack([wide] * 6), np.arange(6), tuple("abcdef")), get_policy("none"), epoch)
    for image in pixels:
        for colour in corners.reshape(4, 3):
            assert (np.abs(image - colour).max(axis=2) < 60).any()
        assert (image == PADDING.pad_colour).all(axis=2).mean() > 0.2
    assert len(np.unique(pixels, axis=0)) == 6


def test_padding_at_full_scale_is_evaluation_at_a_random_position() -> None:
    images = np.stack([np.asarray(make_image(number, (80, 30))) for number in range(6)])  # 40 x 15 of the 40 x 30
    how = get_policy("none", crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), hflip=0.0)
    trained = train_pixels(ArrayDataset(images, np.arange(6), tuple("abcdef")), how)
    lefts = set()
    for image, pixels in zip(images, trained, strict=True):
        evaluated = resize_and_crop(Image.fromarray(image), replace(PADDING, interpolation="bilinear"))[:, 7:22].astype(int)
        (left,) = [at for at in range(16) if np.abs(pixels[:, at : at + 15] - evaluated).max() <= 1]
        rest = np.delete(pixels, np.s_[left : left + 15], axis=1)
        assert (rest == PADDING.pad_colour).all()
        lefts.add(left)
    assert len(lefts) > 2


def test_a_jpeg_fills_the_same_box_as_its_pixels(tmp_path: Path) -> None:
    """Decoded at an eighth, a quarter or a half for smaller boxes, it differs only by the filter of that."""
    for number in range(6):
        make_image(number, (500, 900)).save(tmp_path / f"{number}.jpg", quality=95)
    files = sorted(tmp_path.glob("*.jpg"))
    arrays = ArrayDataset(np.stack([np.asarray(decode(file)) for file in files]), np.arange(6), tuple("abcdef"))
    how = get_policy("none", crop_scale=(0.1, 1.0))
    from_files, from_arrays = train_pixels(as_images(files), how), train_pixels(arrays, how)
    padding = [(pixels == PADDING.pad_colour).all(axis=3) for pixels in (from_files, from_arrays)]
    assert np.array_equal(*padding)
    assert np.abs(from_files - from_arrays).mean() < 1


CHANGES: list[dict[str, object]] = [
    {"hflip": 1.0},
    {"randaug_layers": 1},
    {"brightness": 0.5},
    {"hue": 0.5},
    {"erase_prob": 1.0},
    {"interpolation": "bicubic"},
    {"crop_scale": (0.1, 0.2)},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_field_makes_a_difference(change: dict[str, object]) -> None:
    rows = np.full(6, EPOCH), np.arange(6)
    plain = TrainTransform(PREPROCESS, get_policy("none", hflip=0.0), SEED)(make_dataset(), *rows)
    changed = TrainTransform(PREPROCESS, get_policy("none", **{"hflip": 0.0, **change}), SEED)(make_dataset(), *rows)
    assert not torch.equal(plain.images, changed.images)


def test_a_flip_is_the_mirror_image_of_the_same_crop() -> None:
    rows = np.full(6, EPOCH), np.arange(6)
    never, always = (
        TrainTransform(PREPROCESS, get_policy("none", hflip=probability), SEED)(make_dataset(), *rows).images
        for probability in (0.0, 1.0)
    )
    assert_close(always, never.flip(3), rtol=0, atol=0)


def test_no_two_operations_read_the_same_number() -> None:
    layers = 100
    ranges = {
        "crop": range(CROP_OFFSET, CROP_OFFSET + CROP_SLOTS),
        "flip": range(FLIP_OFFSET, FLIP_OFFSET + 1),
        "erase": range(ERASE_OFFSET, ERASE_OFFSET + ERASE_SLOTS),
        "jitter": range(JITTER_OFFSET, JITTER_OFFSET + JITTER_SLOTS),
        "operations": range(RANDAUGMENT_OFFSET, RANDAUGMENT_OFFSET + OPERATION_SLOTS * layers),
        "noise": range(NOISE_OFFSET, NOISE_OFFSET + 1),
        "mix": range(MIX_OFFSET, MIX_OFFSET + MIX_SLOTS),
    }
    slots = [slot for one in ranges.values() for slot in one]
    assert len(slots) == len(set(slots))


def test_flips_and_crops_are_independent() -> None:
    key = 0, np.zeros(20_000, np.int64), np.arange(20_000)
    flips = uniforms(*key, 1, FLIP_OFFSET)[:, 0] < 0.5
    crops = draw_random_resized_crop(
        uniforms(*key, CROP_SLOTS, CROP_OFFSET), np.full((20_000, 2), 100), (0.08, 1.0), (0.75, 4 / 3)
    )
    for column in range(4):
        assert abs(np.corrcoef(flips, crops[:, column])[0, 1]) < 0.03


def test_wide_small_arrays_take_no_excessive_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_transforms, "crop_resize_batch", None)  # its filter table would take gigabytes
    images = np.zeros((4, 16, 200, 3), np.uint8)
    loader = build_train_loader(
        ArrayDataset(images, np.zeros(4, np.int64), ("a",)), Preprocess((16, 200)), 4, get_policy("none")
    )
    assert loader.batch(0).images.shape == (4, 3, 16, 200)
