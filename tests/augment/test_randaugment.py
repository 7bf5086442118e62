"""RandAugment's operations and colour jitter equal torchvision's on Pillow images bit for bit; the levels are the paper's."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy import ndarray
from numpy.testing import assert_array_equal
from PIL import Image
from scipy.stats import chisquare, ks_2samp  # type: ignore[import-untyped]

from tests.reference_libraries import reference_library
from vitrail.augment.counter_rng import uniforms
from vitrail.augment.randaugment import (
    COLOUR_OPERATIONS,
    JITTER_SLOTS,
    OPERATION_SLOTS,
    RANDAUGMENT_TABLE,
    RandAugmentOps,
    StrengthFn,
    affine_of,
    apply_operation,
    colour_jitter,
    cutout,
    draw_colour_jitter,
    draw_randaugment,
)
from vitrail.errors import VitrailError

parity = pytest.mark.parity
CENTRE = np.array([0.5, 0.5])
STRENGTHS: dict[str, tuple[float, ...]] = {
    "AutoContrast": (0.0,),
    "Equalize": (0.0,),
    "Invert": (0.0,),
    "Posterize": (1.0, 4.0, 6.0, 8.0),
    "Solarize": (0.0, 1.0, 76.5, 128.0, 255.0),
    **dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), (0.0, 0.1, 0.73, 1.0, 1.9, 3.7)),
}
CASES = [(name, strength) for name, strengths in STRENGTHS.items() for strength in strengths]


def make_image(mode: str = "RGB", width: int = 53, height: int = 37) -> Image.Image:
    """Not all values occur, nor equally often, so that contrast and equalisation have an effect."""
    noise = np.random.default_rng(0).beta((2, 3, 4), (3, 3, 2), (height, width, 3))
    return Image.fromarray((20 + 200 * noise).astype(np.uint8)).convert(mode)


def apply_with_torchvision(what: Any, name: str, strength: float) -> Any:
    functional = reference_library("torchvision.transforms.v2.functional")
    whole = {"AutoContrast": functional.autocontrast, "Equalize": functional.equalize, "Invert": functional.invert}
    graded = {"Posterize": functional.posterize, "Solarize": functional.solarize}
    factors = {"Color": "saturation", "Contrast": "contrast", "Brightness": "brightness", "Sharpness": "sharpness"}
    if name in whole:
        return whole[name](what)
    if name in graded:
        return graded[name](what, int(strength) if name == "Posterize" else strength)
    return getattr(functional, f"adjust_{factors[name]}")(what, strength)


@parity
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize(("name", "strength"), CASES)
def test_an_operation_is_torchvisions(name: str, strength: float, mode: str) -> None:
    ours = apply_operation(make_image(mode), name, strength, CENTRE)
    assert_array_equal(np.asarray(ours), np.asarray(apply_with_torchvision(make_image(mode), name, strength)))


@parity
@pytest.mark.parametrize(("name", "strength"), CASES)
def test_an_operation_is_torchvisions_on_tensors_but_for_rounding(name: str, strength: float) -> None:
    ours = np.asarray(apply_operation(make_image(), name, strength, CENTRE), np.int64).transpose(2, 0, 1)
    tensor = torch.from_numpy(np.asarray(make_image()).transpose(2, 0, 1).copy())
    apart = np.abs(ours - apply_with_torchvision(tensor, name, strength).long().numpy()).max()
    exact = name in ("Equalize", "Invert", "Posterize", "Solarize")
    assert apart <= (0 if exact else max(1, strength))  # torchvision rounds the grey before multiplying


@pytest.mark.parametrize("name", sorted(RANDAUGMENT_TABLE))
@pytest.mark.parametrize("level", [2, 9, 15, 20])
def test_a_grey_image_is_treated_like_the_same_image_in_three_channels(name: str, level: int) -> None:
    strength, centre = RANDAUGMENT_TABLE[name](float(level), -1.0), np.array([0.3, 0.6])
    grey = apply_operation(make_image("L"), name, strength, centre)
    colour = apply_operation(make_image("L").convert("RGB"), name, strength, centre)
    assert_array_equal(np.asarray(grey.convert("RGB")), np.asarray(colour))


@pytest.mark.parametrize("name", [*COLOUR_OPERATIONS, "Cutout", "Rotate", "ShearX", "TranslateY"])
def test_the_input_image_is_not_modified(name: str) -> None:
    image = make_image()
    apply_operation(image, name, 5.0, CENTRE)
    assert_array_equal(np.asarray(image), np.asarray(make_image()))


def test_bits_beyond_the_range_are_all_or_none() -> None:
    values = np.asarray(make_image())
    assert_array_equal(np.asarray(apply_operation(make_image(), "Posterize", 11.0, CENTRE)), values)
    assert_array_equal(np.asarray(apply_operation(make_image(), "Posterize", 0.0, CENTRE)), values * 0)
    assert_array_equal(np.asarray(apply_operation(make_image(), "Solarize", 300.0, CENTRE)), values)


@pytest.mark.parametrize("amount", [0, 110, 165, 220, -40])
def test_solarise_add_brightens_the_darker_half(amount: int) -> None:
    values = np.asarray(make_image(), np.int64)
    expected = np.where(values < 128, np.clip(values + amount, 0, 255), values)
    assert_array_equal(np.asarray(apply_operation(make_image(), "SolarizeAdd", float(amount), CENTRE)), expected)


@pytest.mark.parametrize("centre", [(0.0, 0.0), (0.999, 0.999), (0.4, 0.7)])
@pytest.mark.parametrize("reach", [0.0, 10.0, 40.0, 80.0])
def test_cutout_fills_a_square_around_its_centre(centre: tuple[float, float], reach: float) -> None:
    width, height = 53, 37
    side = int(reach * height / 224)
    rows, columns = np.mgrid[:height, :width]
    y, x = int(centre[0] * height), int(centre[1] * width)
    near = (rows >= y - side) & (rows < y + side) & (columns >= x - side) & (columns < x + side)
    expected = np.where(near[..., None], 128, np.asarray(make_image()))
    assert_array_equal(np.asarray(cutout(make_image(), reach, np.array(centre))), expected)


# Strengths in the published TensorFlow code, run in a graph: its thresholds and shifts are uint8 and wrap.
REFERENCE: dict[str, dict[int, float]] = {
    "Rotate": {5: 15.0, 10: 30.0, 20: 60.0},
    "Posterize": {2: 1.0, 10: 4.0, 15: 6.0, 20: 8.0, 25: 1.0},
    "Solarize": {5: 128.0, 10: 0.0, 15: 128.0, 20: 0.0},
    "SolarizeAdd": {5: 55.0, 10: 110.0, 15: 165.0, 20: 220.0},
    "Color": {5: 1.0, 10: 1.9, 20: 3.7},
    "ShearY": {10: 0.3, 15: 0.45},
    "TranslateX": {10: 100.0, 15: 150.0},
    "Cutout": {10: 40.0, 20: 80.0},
}


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_the_levels_are_the_papers(name: str) -> None:
    for level, strength in REFERENCE[name].items():
        assert RANDAUGMENT_TABLE[name](float(level), 1.0) == pytest.approx(strength, abs=1e-12)


def test_there_are_sixteen_operations_and_five_are_geometric() -> None:
    assert len(RANDAUGMENT_TABLE) == 16
    assert {name for name in RANDAUGMENT_TABLE if affine_of(name, 20.0, 53, 37)} == {
        "Rotate",
        "ShearX",
        "ShearY",
        "TranslateX",
        "TranslateY",
    }


def test_a_translation_is_a_fraction_of_the_side() -> None:
    for side, shift in ((224, 100), (32, 14), (448, 200)):
        assert affine_of("TranslateX", 100.0, side, 99) == (1, 0, -shift, 0, 1, 0)
        assert affine_of("TranslateY", -100.0, 99, side) == (1, 0, 0, 0, 1, shift)


def torchvision_table(width: int, height: int) -> Mapping[str, StrengthFn]:
    """torchvision's own 31 levels in our units; translations in pixels of an image 224 wide or high."""
    space = reference_library("torchvision.transforms.v2").RandAugment._AUGMENTATION_SPACE

    def scale(name: str) -> StrengthFn:
        strengths, signed = space[name]
        strengths = strengths(31, height, width)
        at = {"TranslateX": 224 / width, "TranslateY": 224 / height, "Solarize": 255.0}.get(name, 1.0)
        middle = 1.0 if name in ("Brightness", "Color", "Contrast", "Sharpness") else 0.0

        def strength(level: float, sign: float) -> float:
            if strengths is None:
                return 0.0
            return middle + at * float(strengths[int(level)]) * (sign if signed else 1.0)

        return strength

    return {name: scale(name) for name in space}


@parity
@pytest.mark.parametrize("level", [0, 9, 17, 30])
def test_torchvisions_randaugment_is_one_more_table(level: int) -> None:
    v2 = reference_library("torchvision.transforms.v2")
    width, height = 53, 37
    reference = v2.RandAugment(fill=128)
    for name, scale in torchvision_table(width, height).items():
        strengths, signed = reference._AUGMENTATION_SPACE[name]
        table = strengths(31, height, width)
        for sign in (-1.0, 1.0) if signed else (1.0,):
            magnitude = 0.0 if table is None else sign * float(table[level])
            expected = reference._apply_image_or_video_transform(make_image(), name, magnitude, "nearest", reference._fill)
            ours = apply_operation(make_image(), name, scale(float(level), sign), CENTRE)
            assert_array_equal(np.asarray(ours), np.asarray(expected), err_msg=f"{name} {sign}")


def draw_many(n: int = 20_000, layers: int = 3, magnitude: float = 15) -> RandAugmentOps:
    return draw_randaugment(uniforms(3, 1, np.arange(n), OPERATION_SLOTS * layers), layers, magnitude)


def test_every_operation_is_drawn_equally_often_in_both_directions_and_independently() -> None:
    operations = draw_many()
    for layer in range(3):
        assert chisquare(np.bincount(operations.indices[:, layer], minlength=16)).pvalue > 1e-3
    pairs = operations.indices[:, 0] * 16 + operations.indices[:, 1]
    assert chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-3
    turned = operations.strengths[operations.indices == operations.names.index("Rotate")]
    assert set(np.abs(turned)) == {45.0}
    assert chisquare([(turned < 0).sum(), (turned > 0).sum()]).pvalue > 1e-3
    assert ks_2samp(operations.centres[:, 1, 0], np.linspace(0, 1, 20_000)).pvalue > 1e-3


def test_an_image_draws_the_same_alone_as_in_a_batch() -> None:
    many = draw_many(n=7)
    alone = draw_randaugment(uniforms(3, 1, np.array([4]), OPERATION_SLOTS * 3), 3, 15)
    assert_array_equal(alone.indices[0], many.indices[4])
    assert_array_equal(alone.strengths[0], many.strengths[4])
    assert_array_equal(alone.centres[0], many.centres[4])


def test_an_unknown_operation_is_named() -> None:
    with pytest.raises(VitrailError, match=r"'Contrats'.*did you mean 'Contrast'"):
        apply_operation(make_image(), "Contrats", 1.0, CENTRE)


AMOUNTS = [(0.4, 0.3, 0.7, 0.2), (0.0, 0.5, 0.0, 0.5), (1.3, 0.0, 0.2, 0.0), (0.0, 0.0, 0.0, 0.0)]


def draw_jitters(n: int, amounts: tuple[float, float, float, float]) -> tuple[ndarray, ndarray]:
    return draw_colour_jitter(uniforms(5, 2, np.arange(n), JITTER_SLOTS), *amounts)


@parity
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("amounts", AMOUNTS)
def test_jitter_is_torchvisions(amounts: tuple[float, float, float, float], mode: str) -> None:
    reference = reference_library("torchvision.transforms.v2").ColorJitter(*amounts)
    names = ("brightness", "contrast", "saturation", "hue")
    for factors, order in zip(*draw_jitters(9, amounts), strict=True):
        values = {f"{name}_factor": float(f) if a else None for name, f, a in zip(names, factors, amounts, strict=True)}
        expected = reference.transform(make_image(mode), {"fn_idx": torch.from_numpy(order), **values})
        assert_array_equal(np.asarray(colour_jitter(make_image(mode), factors, order)), np.asarray(expected))


@parity
@pytest.mark.parametrize("amounts", AMOUNTS[:1])
def test_jitter_is_drawn_as_by_torchvision(amounts: tuple[float, float, float, float]) -> None:
    reference = reference_library("torchvision.transforms.v2").ColorJitter(*amounts)
    params = [reference.make_params([]) for _ in range(2000)]
    factors, orders = draw_jitters(20_000, amounts)
    for which, name in enumerate(("brightness", "contrast", "saturation", "hue")):
        assert ks_2samp(factors[:, which], [p[f"{name}_factor"] for p in params]).pvalue > 1e-3
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert chisquare(counts).pvalue > 1e-3


def test_a_factor_is_never_negative_and_no_jitter_changes_nothing() -> None:
    factors, orders = draw_jitters(500, (1.3, 2.0, 1.1, 0.5))
    assert factors[:, :3].min() >= 0
    assert np.abs(factors[:, 3]).max() <= 0.5
    untouched, _ = draw_jitters(3, (0.0, 0.0, 0.0, 0.0))
    assert_array_equal(np.asarray(colour_jitter(make_image(), untouched[0], orders[0])), np.asarray(make_image()))
