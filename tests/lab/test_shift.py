"""Which features are equivariant to shifts of the image, and which are not."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.small import vit
from vitrail.lab.experiment import Asked
from vitrail.lab.moving import SHIFTS, STRIDE, alike_map, alike_pooled, joined, mapped, moved
from vitrail.lab.shift import BARE, JOINED, RESNET, STATES, VIT, models, tell, trials
from vitrail.lab.trial import Row
from vitrail.models.build import Model, build
from vitrail.models.cost import cost
from vitrail.models.settings import ResNetConfig

QUICK = Asked("fashion", quick=True)
SIZE: dict[str, Any] = {"image": (16, 20), "channels": 3}


def bare(**changes: Any) -> Model:
    return vit(patch=(STRIDE, STRIDE), pool="gap", **{**SIZE, "position": "none", **changes})


def resnet() -> Model:
    return build(ResNetConfig(stages=(2,), width=32, classes=5, **SIZE)).eval()


def test_the_pooled_feature_map_equals_the_features() -> None:
    images = torch.randn(3, 3, 16, 20)
    for model in (bare(position="learned1d"), resnet()):
        assert_close(mapped(model, images).mean(dim=(2, 3)), model.features(images))


@pytest.mark.parametrize("axis", [2, 3])
def test_without_positions_a_vit_is_equivariant_to_whole_patches(axis: int) -> None:
    images = torch.randn(3, 3, 16, 20)
    for model, exact in ((bare(), True), (bare(position="learned1d"), False)):
        before, after = (mapped(model, torch.roll(images, pixels, axis)) for pixels in (0, 2 * STRIDE))
        assert (alike_map(before, after, 2 * STRIDE, axis) > 1 - 1e-5) == exact
        assert (alike_pooled(before, after) > 1 - 1e-5) == exact


@pytest.mark.parametrize("axis", [2, 3])
def test_a_resnet_is_equivariant_up_to_its_padding(axis: int) -> None:
    images, model = torch.randn(3, 3, 16, 20), resnet()
    before, after = (mapped(model, torch.roll(images, pixels, axis)) for pixels in (0, STRIDE))
    assert alike_map(before, after, STRIDE, axis) < 0.99
    before, after = (mapped(joined(model), torch.roll(images, pixels, axis)) for pixels in (0, STRIDE))
    assert_close(after, torch.roll(before, 1, axis), rtol=1e-4, atol=1e-4)
    assert alike_map(before, after, STRIDE, axis) == pytest.approx(1, abs=1e-5)


def test_similarity_is_1_without_a_shift_and_0_for_another_image() -> None:
    maps = torch.randn(40, 24, 4, 5)
    assert alike_map(maps, maps, 0, 3) == pytest.approx(1)
    assert alike_pooled(maps, maps) == pytest.approx(1)
    assert abs(alike_pooled(maps, maps.roll(1, 0))) < 0.2
    halfway = (maps + maps.roll(1, 3)) / 2
    assert alike_map(maps, halfway, STRIDE // 2, 3) == pytest.approx(1)


def test_every_shift_is_measured() -> None:
    found = moved(bare(), torch.randn(3, 3, 16, 20))
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(("pooled", "map", "consistency"), len(SHIFTS))
    assert found["consistency"][STRIDE - 1] == 1


def test_arms_have_equal_positions_and_about_equal_multiply_adds() -> None:
    found = {name: cost(model) for name, model in models(QUICK).items()}
    assert len({price.grid for price in found.values()}) == 1
    assert all(price.macs == pytest.approx(found[VIT].macs, rel=0.1) for price in found.values())


def test_arms_differ_in_their_model_alone_and_train_without_shifts() -> None:
    made = trials(Asked("fashion"))
    assert [job.of["seed"] for job in made] == [0] * 3 + [1] * 3 + [2] * 3
    for job in made:
        first = made[3 * job.of["seed"]].recipe
        same = [(getattr(job.recipe, name), getattr(first, name)) for name in ("data", "steps", "batch", "seed", "augment")]
        assert all(one == other for one, other in same)
        assert job.recipe.augment.crop == "none"


def test_a_diverged_run_is_reported_and_nothing_is_compared() -> None:
    values = {kind: [0.5] * len(SHIFTS) for kind in ("map", "pooled", "consistency")}
    lines = {"": dict.fromkeys(STATES, values)}
    whole = [
        Row({"arm": name, "seed": 0}, "", 1, 1, 1, 1, measured={"shifts": list(SHIFTS), "lines": lines}) for name in (VIT, BARE)
    ]
    result = tell(QUICK, [*whole, Row({"arm": RESNET, "seed": 0}, "", 1, 1, 1, 1, failed="steps were skipped")])
    assert "could be trained" in result.answer
    assert result.numbers["failed"] == {RESNET: "steps were skipped"}
    assert RESNET + JOINED not in result.numbers["arms"]
    assert "ResNet failed: steps were skipped" in "".join(part for part in result.parts if isinstance(part, str))
