"""Augmentation settings: the published presets, and rejection of invalid values."""

import pytest

from vitrail.augment.policy import POLICIES, Policy, get_policy
from vitrail.config import from_json, to_json
from vitrail.errors import VitrailError

AUGREG = {  # Steiner et al. 2021: layers and magnitude of RandAugment, alpha of Mixup
    "none": (0, None, 0.0),
    "light1": (2, 0.0, 0.0),
    "light2": (2, 10.0, 0.2),
    "medium1": (2, 15.0, 0.2),
    "medium2": (2, 15.0, 0.5),
    "strong1": (2, 20.0, 0.5),
    "strong2": (2, 20.0, 0.8),
}


@pytest.mark.parametrize("name", AUGREG)
def test_augregs_presets_are_the_published_ones(name: str) -> None:
    layers, magnitude, alpha = AUGREG[name]
    built = get_policy(name)
    assert (built.randaug_layers, built.mixup, built.cutmix) == (layers, alpha, 0)
    assert magnitude is None or built.randaug_magnitude == magnitude
    assert (built.crop, built.crop_scale, built.hflip) == ("random-resized", (0.05, 1.0), 0.5)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_survives_json_and_takes_changes(name: str) -> None:
    assert from_json(Policy, to_json(get_policy(name))) == get_policy(name)
    assert get_policy(name, hflip=0.25).hflip == 0.25


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"hflip": 1.5}, "hflip must be a probability from 0 to 1, got 1.5; try hflip=0.5"),
        ({"crop_scale": (0.5, 0.2)}, "crop_scale must be two rising numbers above 0, at most 1, got 0.5 and 0.2"),
        ({"crop_scale": (0.5, 2.0)}, "at most 1"),
        ({"crop_ratio": (0.0, 1.0)}, "crop_ratio must be two rising numbers above 0, got 0.0 and 1.0"),
        ({"mixup": -0.1}, "mixup must not be below 0"),
        ({"hue": 0.7}, "hue must be at most 0.5"),
        ({"crop": "random-resised"}, "did you mean 'random-resized'"),
        ({"randaug_layers": 1.5}, "randaug_layers must be a whole number"),
    ],
)
def test_invalid_values_are_rejected(wrong: dict[str, object], sentence: str) -> None:
    with pytest.raises(VitrailError, match=sentence):
        Policy(**wrong)  # type: ignore[arg-type]


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(VitrailError, match=r"no augmentation is named 'ligth2'; there are .*; did you mean 'light2'"):
        get_policy("ligth2")
