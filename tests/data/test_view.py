"""An augmented image is the drawn operations applied in order, each drawn from random numbers of its own."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from tests.data.pictures import picture
from vitrail.augment.chance import bits, uniforms
from vitrail.augment.colour import JITTER_SLOTS, OPERATION_SLOTS, apply_operation, draw_jitter, draw_operations, jitter
from vitrail.augment.erase import ERASE_SLOTS, draw_erase, erase
from vitrail.augment.geometry import CROP_SLOTS, crop_resize, draw_inception
from vitrail.augment.mix import MIX_SLOTS
from vitrail.augment.policy import Policy, policy
from vitrail.data import view
from vitrail.data.loader import MIX, training
from vitrail.data.prepare import normalise
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.source import Arrays
from vitrail.data.view import CROP, ERASE, FLIP, JITTER, NOISE, OPERATIONS, Augmented

HOW = Preprocess((40, 30), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
SEED, EPOCH = 3, 5


def source() -> Arrays:
    images = np.stack([np.asarray(picture(number, (80, 70))) for number in range(6)])
    return Arrays(images, np.arange(6), tuple("abcdef"))


def composed(index: int, how: Policy) -> torch.Tensor:
    """Apply by hand: crop, flip, RandAugment, jitter, normalise, erase."""
    key = SEED, np.array([EPOCH]), np.array([index])
    crop = draw_inception(uniforms(*key, CROP_SLOTS, CROP), np.array([[80, 70]]), how.area, how.ratio)[0].tolist()
    flip = bool(uniforms(*key, 1, FLIP)[0, 0] < how.flip)
    shown = crop_resize(source().images[index], tuple(crop), HOW.image, flip, how.interpolation)
    image = Image.fromarray(shown.permute(1, 2, 0).contiguous().numpy())
    drawn = draw_operations(uniforms(*key, OPERATION_SLOTS * how.layers, OPERATIONS), how.layers, how.magnitude)
    for chosen, strength, centre in zip(drawn.chosen[0], drawn.strengths[0], drawn.centres[0], strict=True):
        image = apply_operation(image, drawn.names[chosen], float(strength), centre)
    amounts = how.brightness, how.contrast, how.saturation, how.hue
    factors, orders = draw_jitter(uniforms(*key, JITTER_SLOTS, JITTER), *amounts)
    image = jitter(image, factors[0], orders[0])
    ready = normalise(torch.from_numpy(np.array(image)).permute(2, 0, 1).float(), HOW)[None]
    boxes = draw_erase(uniforms(*key, ERASE_SLOTS, ERASE), how.erase, how.erase_area, how.erase_ratio, HOW.image)
    return erase(ready, boxes, bits(*key, NOISE)[:, 0] if how.erase_noise else None)[0]


EVERYTHING = policy("none", layers=2, brightness=0.4, contrast=0.3, saturation=0.5, hue=0.2, erase=0.7, erase_noise=True)


@pytest.mark.parametrize("how", [policy("none"), policy("strong1", mixup=0.0), EVERYTHING], ids=["crop", "randaugment", "all"])
def test_a_policy_is_its_operations_in_order(how: Policy) -> None:
    indices = np.arange(6)
    seen = Augmented(HOW, how, SEED)(source(), np.full(6, EPOCH), indices)
    assert torch.equal(seen.images, torch.stack([composed(index, how) for index in indices.tolist()]))


CHANGES: list[dict[str, object]] = [
    {"flip": 1.0},
    {"layers": 1},
    {"brightness": 0.5},
    {"hue": 0.5},
    {"erase": 1.0},
    {"interpolation": "bicubic"},
    {"area": (0.1, 0.2)},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_field_makes_a_difference(change: dict[str, object]) -> None:
    rows = np.full(6, EPOCH), np.arange(6)
    plain = Augmented(HOW, policy("none", flip=0.0), SEED)(source(), *rows)
    changed = Augmented(HOW, policy("none", **{"flip": 0.0, **change}), SEED)(source(), *rows)
    assert not torch.equal(plain.images, changed.images)


def test_a_flip_is_the_mirror_image_of_the_same_crop() -> None:
    rows = np.full(6, EPOCH), np.arange(6)
    never, always = (Augmented(HOW, policy("none", flip=share), SEED)(source(), *rows).images for share in (0.0, 1.0))
    assert_close(always, never.flip(3), rtol=0, atol=0)


def test_no_two_operations_read_the_same_number() -> None:
    layers = 100
    ranges = {
        "crop": range(CROP, CROP + CROP_SLOTS),
        "flip": range(FLIP, FLIP + 1),
        "erase": range(ERASE, ERASE + ERASE_SLOTS),
        "jitter": range(JITTER, JITTER + JITTER_SLOTS),
        "operations": range(OPERATIONS, OPERATIONS + OPERATION_SLOTS * layers),
        "noise": range(NOISE, NOISE + 1),
        "mix": range(MIX, MIX + MIX_SLOTS),
    }
    slots = [slot for one in ranges.values() for slot in one]
    assert len(slots) == len(set(slots))


def test_flips_and_crops_are_independent() -> None:
    key = 0, np.zeros(20_000, np.int64), np.arange(20_000)
    flips = uniforms(*key, 1, FLIP)[:, 0] < 0.5
    crops = draw_inception(uniforms(*key, CROP_SLOTS, CROP), np.full((20_000, 2), 100), (0.08, 1.0), (0.75, 4 / 3))
    for column in range(4):
        assert abs(np.corrcoef(flips, crops[:, column])[0, 1]) < 0.03


def test_wide_small_arrays_take_no_excessive_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "resample", None)  # its filter table would take gigabytes
    images = np.zeros((4, 16, 200, 3), np.uint8)
    loader = training(Arrays(images, np.zeros(4, np.int64), ("a",)), Preprocess((16, 200)), 4, policy("none"))
    assert loader.batch(0).images.shape == (4, 3, 16, 200)
