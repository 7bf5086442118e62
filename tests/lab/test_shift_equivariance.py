"""Which features are equivariant to shifts of the image, and which are not."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from tests.small_models import small_vit
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.shift_equivariance import (
    CIRCULAR,
    RESNET,
    SHIFTS,
    STATES,
    STRIDE,
    VIT,
    VIT_NO_POSITIONS,
    build_result,
    feature_map,
    jobs,
    map_similarity,
    measure_shifts,
    models,
    pooled_similarity,
    with_circular_padding,
)
from vitrail.lab.trials import JobResult
from vitrail.models.build import Model, build
from vitrail.models.config import ResNetConfig
from vitrail.models.cost import cost

QUICK = ExperimentOptions("fashion", quick=True)
SIZE: dict[str, Any] = {"image": (16, 20), "channels": 3}


def vit_without_positions(**changes: Any) -> Model:
    return small_vit(patch=(STRIDE, STRIDE), pool="gap", **{**SIZE, "position": "none", **changes})


def small_resnet() -> Model:
    return build(ResNetConfig(stages=(2,), width=32, classes=5, **SIZE)).eval()


def test_the_pooled_feature_map_equals_the_features() -> None:
    images = torch.randn(3, 3, 16, 20)
    for model in (vit_without_positions(position="learned1d"), small_resnet()):
        assert_close(feature_map(model, images).mean(dim=(2, 3)), model.features(images))


@pytest.mark.parametrize("axis", [2, 3])
def test_without_positions_a_vit_is_equivariant_to_whole_patches(axis: int) -> None:
    images = torch.randn(3, 3, 16, 20)
    for model, exact in ((vit_without_positions(), True), (vit_without_positions(position="learned1d"), False)):
        before, after = (feature_map(model, torch.roll(images, pixels, axis)) for pixels in (0, 2 * STRIDE))
        assert (map_similarity(before, after, 2 * STRIDE, axis) > 1 - 1e-5) == exact
        assert (pooled_similarity(before, after) > 1 - 1e-5) == exact


@pytest.mark.parametrize("axis", [2, 3])
def test_a_resnet_is_equivariant_up_to_its_padding(axis: int) -> None:
    images, model = torch.randn(3, 3, 16, 20), small_resnet()
    before, after = (feature_map(model, torch.roll(images, pixels, axis)) for pixels in (0, STRIDE))
    assert map_similarity(before, after, STRIDE, axis) < 0.99
    before, after = (feature_map(with_circular_padding(model), torch.roll(images, pixels, axis)) for pixels in (0, STRIDE))
    assert_close(after, torch.roll(before, 1, axis), rtol=1e-4, atol=1e-4)
    assert map_similarity(before, after, STRIDE, axis) == pytest.approx(1, abs=1e-5)


def test_similarity_is_1_without_a_shift_and_0_for_another_image() -> None:
    maps = torch.randn(40, 24, 4, 5)
    assert map_similarity(maps, maps, 0, 3) == pytest.approx(1)
    assert pooled_similarity(maps, maps) == pytest.approx(1)
    assert abs(pooled_similarity(maps, maps.roll(1, 0))) < 0.2
    halfway = (maps + maps.roll(1, 3)) / 2
    assert map_similarity(maps, halfway, STRIDE // 2, 3) == pytest.approx(1)


def test_every_shift_is_measured() -> None:
    result = measure_shifts(vit_without_positions(), torch.randn(3, 3, 16, 20))
    assert {name: len(values) for name, values in result.items()} == dict.fromkeys(
        ("pooled", "map", "consistency"), len(SHIFTS)
    )
    assert result["consistency"][STRIDE - 1] == 1


def test_arms_have_equal_positions_and_about_equal_multiply_adds() -> None:
    result = {name: cost(model) for name, model in models(QUICK).items()}
    assert len({price.grid for price in result.values()}) == 1
    assert all(price.macs == pytest.approx(result[VIT].macs, rel=0.1) for price in result.values())


def test_arms_differ_in_their_model_alone_and_train_without_shifts() -> None:
    built = jobs(ExperimentOptions("fashion"))
    assert [job.condition["seed"] for job in built] == [0] * 3 + [1] * 3 + [2] * 3
    for job in built:
        first = built[3 * job.condition["seed"]].recipe
        same = [
            (getattr(job.recipe, name), getattr(first, name)) for name in ("data", "steps", "batch_size", "seed", "augment")
        ]
        assert all(one == other for one, other in same)
        assert job.recipe.augment.crop == "none"


def test_a_diverged_run_is_reported_and_nothing_is_compared() -> None:
    values = {kind: [0.5] * len(SHIFTS) for kind in ("map", "pooled", "consistency")}
    lines = {"": dict.fromkeys(STATES, values)}
    whole = [
        JobResult({"arm": name, "seed": 0}, "", 1, 1, 1, 1, measurements={"shifts": list(SHIFTS), "lines": lines})
        for name in (VIT, VIT_NO_POSITIONS)
    ]
    result = build_result(QUICK, [*whole, JobResult({"arm": RESNET, "seed": 0}, "", 1, 1, 1, 1, failure="steps were skipped")])
    assert "could be trained" in result.summary
    assert result.numbers["failed"] == {RESNET: "steps were skipped"}
    assert RESNET + CIRCULAR not in result.numbers["arms"]
    assert "ResNet failed: steps were skipped" in "".join(part for part in result.parts if isinstance(part, str))
