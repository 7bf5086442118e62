"""Explanation benchmark: on a model with known evidence the map of that evidence wins, and masks are where the object is."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.explain.test_faithfulness import OnePatch
from tests.small import vit
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.panes import panes
from vitrail.data.sources.source import Arrays, Part
from vitrail.errors import VitrailError
from vitrail.evaluate.trust import fitting, masks_of, some, trust, verdict
from vitrail.explain.faithfulness import area
from vitrail.explain.maps import METHODS

HOW = Preprocess((12, 15), mean=(0.5,) * 3, std=(0.5,) * 3)


def bright_patches(count: int = 9) -> Arrays:
    """Return images white in row 1, column 2, with the most edges in row 0, column 0, and dark noise elsewhere."""
    images = np.random.default_rng(0).integers(0, 60, (count, 12, 15, 3)).astype(np.uint8)
    images[:, 6:12, 10:15] = 255
    images[:, 2:4, 0:5] = 250
    return Arrays(images, np.zeros(count, np.int64), ("a", "b", "c", "d", "e"))


def test_the_map_of_the_known_evidence_beats_a_random_map(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnePatch(vit().config).eval()
    model.preprocess = HOW

    def oracle(_: object, images: torch.Tensor, classes: object) -> torch.Tensor:
        values = torch.zeros(images.shape[0], 2, 3)
        values[:, 1, 2] = 1
        return values

    monkeypatch.setitem(METHODS, "oracle", oracle)
    found = {row.method: row for row in trust(model, bright_patches(), ["oracle"], batch=4, workers=0)}
    assert list(found) == ["random", "edges", "oracle"]
    assert found["oracle"].deletion.mean < found["random"].deletion.mean - 3 * found["random"].deletion.error
    assert found["oracle"].insertion.mean > found["random"].insertion.mean
    assert found["oracle"].pointing is None
    assert found["oracle"].overlap is None
    for row in found.values():
        for score, curve in ((row.deletion, row.deletion_curve), (row.insertion, row.insertion_curve)):
            assert score.mean == pytest.approx(area(torch.tensor([curve])).item(), abs=1e-6)


def test_significantly_better_methods_are_listed_and_the_best_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnePatch(vit().config).eval()
    model.preprocess = HOW

    def place(y: int, x: int) -> Any:
        values = torch.zeros(2, 3)
        values[y, x] = 1
        return lambda _, images, __: values.expand(images.shape[0], 2, 3)

    monkeypatch.setitem(METHODS, "oracle", place(1, 2))
    monkeypatch.setitem(METHODS, "wrong", place(0, 0))
    rows = trust(model, bright_patches(30), ["wrong", "oracle"], batch=8, workers=0)
    better = {row.method: row.better for row in rows}
    assert "deletion" in better["oracle"]
    assert better["wrong"] == better["random"] == better["edges"] == ()
    assert verdict(rows).startswith(
        "Most faithful: oracle. Significantly better than a random map and an edge detector: oracle on "
    )
    assert verdict(rows).endswith("wrong on none.")
    alone = trust(model, bright_patches(30), ["wrong"], batch=8, workers=0)
    assert (
        verdict(alone)
        == "None of wrong is significantly better than a random map and an edge detector here: no map is faithful."
    )
    few = trust(model, bright_patches(9), ["oracle"], workers=0)
    assert few[-1].better == ()
    assert verdict(few) == "9 images are too few for a verdict; use at least 10, better 100."


def test_a_model_with_nan_logits_is_an_error() -> None:
    model = vit()
    model.preprocess = HOW
    next(model.head.parameters()).data.fill_(float("nan"))
    with pytest.raises(VitrailError, match="its weights may be damaged"):
        trust(model, bright_patches(), ["rollout"], workers=0)


def test_scores_do_not_depend_on_the_batch_size_but_for_the_random_map() -> None:
    model = vit()
    model.preprocess = HOW
    one, other = (trust(model, bright_patches(), batch=size, workers=0) for size in (2, 9))
    for first, second in zip(one[1:], other[1:], strict=True):
        assert first.deletion.mean == pytest.approx(second.deletion.mean, abs=1e-5)
        assert first.insertion.error == pytest.approx(second.insertion.error, abs=1e-5)


def test_a_large_model_has_a_smaller_batch() -> None:
    assert fitting(vit()) == 16
    large = vit(image=(240, 300), depth=24, heads=3)  # 2,401 tokens: 3.3 GB per image
    assert fitting(large) == 1


def test_panes_have_object_masks() -> None:
    model = vit()
    model.preprocess = HOW
    source = Part(panes("test", 8, (24, 30)), np.array([5, 1, 7]))
    rows = trust(model, source, ["rollout"], workers=0)
    assert all(row.pointing is not None and row.overlap is not None for row in rows)
    masks = masks_of(source, [0, 2], Preprocess((24, 30)))
    assert masks is not None
    for mask, index in zip(masks, (5, 7), strict=True):
        assert_close(mask, torch.from_numpy(panes("test", 8, (24, 30)).scene(index).mask).float())


def test_a_limit_takes_evenly_spaced_images() -> None:
    assert some(bright_patches(), 3).indices.tolist() == [0, 4, 8]  # type: ignore[attr-defined]
    assert len(some(bright_patches(), 99)) == 9


def test_one_image_has_no_standard_error_and_none_is_an_error() -> None:
    model = vit()
    model.preprocess = HOW
    (row, *_) = trust(model, bright_patches(), ["rollout"], limit=1, workers=0)
    assert np.isnan(row.deletion.error)
    with pytest.raises(VitrailError, match="the dataset has no images"):
        trust(model, Arrays(np.zeros((0, 12, 15, 3), np.uint8), np.zeros(0, np.int64), ("a",)), workers=0)


def test_the_area_under_a_curve() -> None:
    assert area(torch.tensor([[1.0, 0.0]])).item() == 0.5
