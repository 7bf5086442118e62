"""Explanation benchmark: on a model with known evidence the map of that evidence wins, and masks are where the object is."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests.explain.test_faithfulness import OnePatch
from tests.small_models import small_vit
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.dataset import ArrayDataset, Subset
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.errors import VitrailError
from vitrail.evaluation.explanation_benchmark import (
    benchmark_explanations,
    evenly_spaced,
    max_batch_size,
    object_masks,
    verdict,
)
from vitrail.explain.faithfulness import auc
from vitrail.explain.saliency import SALIENCY_METHODS

PREPROCESS = Preprocess((12, 15), mean=(0.5,) * 3, std=(0.5,) * 3)


def bright_patches(count: int = 9) -> ArrayDataset:
    """Return images white in row 1, column 2, with the most edges in row 0, column 0, and dark noise elsewhere."""
    images = np.random.default_rng(0).integers(0, 60, (count, 12, 15, 3)).astype(np.uint8)
    images[:, 6:12, 10:15] = 255
    images[:, 2:4, 0:5] = 250
    return ArrayDataset(images, np.zeros(count, np.int64), ("a", "b", "c", "d", "e"))


def test_the_map_of_the_known_evidence_beats_a_random_map(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnePatch(small_vit().config).eval()
    model.preprocess = PREPROCESS

    def oracle(_: object, images: torch.Tensor, classes: object) -> torch.Tensor:
        values = torch.zeros(images.shape[0], 2, 3)
        values[:, 1, 2] = 1
        return values

    monkeypatch.setitem(SALIENCY_METHODS, "oracle", oracle)
    rows = {row.method: row for row in benchmark_explanations(model, bright_patches(), ["oracle"], batch_size=4, workers=0)}
    assert list(rows) == ["random", "edges", "oracle"]
    assert rows["oracle"].deletion.mean < rows["random"].deletion.mean - 3 * rows["random"].deletion.error
    assert rows["oracle"].insertion.mean > rows["random"].insertion.mean
    assert rows["oracle"].pointing_game is None
    assert rows["oracle"].mass_on_object is None
    for row in rows.values():
        for score, curve in ((row.deletion, row.deletion_curve), (row.insertion, row.insertion_curve)):
            assert score.mean == pytest.approx(auc(torch.tensor([curve])).item(), abs=1e-6)


def test_significantly_better_methods_are_listed_and_the_best_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnePatch(small_vit().config).eval()
    model.preprocess = PREPROCESS

    def constant_map(y: int, x: int) -> Any:
        values = torch.zeros(2, 3)
        values[y, x] = 1
        return lambda _, images, __: values.expand(images.shape[0], 2, 3)

    monkeypatch.setitem(SALIENCY_METHODS, "oracle", constant_map(1, 2))
    monkeypatch.setitem(SALIENCY_METHODS, "wrong", constant_map(0, 0))
    rows = benchmark_explanations(model, bright_patches(30), ["wrong", "oracle"], batch_size=8, workers=0)
    better = {row.method: row.better_on for row in rows}
    assert "deletion" in better["oracle"]
    assert better["wrong"] == better["random"] == better["edges"] == ()
    assert verdict(rows).startswith(
        "Most faithful: oracle. Significantly better than a random map and an edge detector: oracle on "
    )
    assert verdict(rows).endswith("wrong on none.")
    alone = benchmark_explanations(model, bright_patches(30), ["wrong"], batch_size=8, workers=0)
    assert (
        verdict(alone)
        == "None of wrong is significantly better than a random map and an edge detector here: no map is faithful."
    )
    few = benchmark_explanations(model, bright_patches(9), ["oracle"], workers=0)
    assert few[-1].better_on == ()
    assert verdict(few) == "9 images are too few for a verdict; use at least 10, better 100."


def test_a_model_with_nan_logits_is_an_error() -> None:
    model = small_vit()
    model.preprocess = PREPROCESS
    next(model.head.parameters()).data.fill_(float("nan"))
    with pytest.raises(VitrailError, match="its weights may be damaged"):
        benchmark_explanations(model, bright_patches(), ["rollout"], workers=0)


@pytest.mark.thorough
def test_scores_do_not_depend_on_the_batch_size_but_for_the_random_map() -> None:
    model = small_vit()
    model.preprocess = PREPROCESS
    one, other = (benchmark_explanations(model, bright_patches(), steps=4, batch_size=size, workers=0) for size in (2, 9))
    for first, second in zip(one[1:], other[1:], strict=True):
        assert first.deletion.mean == pytest.approx(second.deletion.mean, abs=1e-5)
        assert first.insertion.error == pytest.approx(second.insertion.error, abs=1e-5)


def test_a_large_model_has_a_smaller_batch() -> None:
    assert max_batch_size(small_vit()) == 16
    large = small_vit(image=(240, 300), depth=24, heads=3)  # 2,401 tokens: 3.3 GB per image
    assert max_batch_size(large) == 1


def test_panes_have_object_masks() -> None:
    model = small_vit()
    model.preprocess = PREPROCESS
    source = Subset(build_panes("test", 8, (24, 30)), np.array([5, 1, 7]))
    rows = benchmark_explanations(model, source, ["rollout"], workers=0)
    assert all(row.pointing_game is not None and row.mass_on_object is not None for row in rows)
    masks = object_masks(source, [0, 2], Preprocess((24, 30)))
    assert masks is not None
    for mask, index in zip(masks, (5, 7), strict=True):
        assert_close(mask, torch.from_numpy(build_panes("test", 8, (24, 30)).scene(index).mask).float())


def test_a_limit_takes_evenly_spaced_images() -> None:
    assert evenly_spaced(bright_patches(), 3).indices.tolist() == [0, 4, 8]  # type: ignore[attr-defined]
    assert len(evenly_spaced(bright_patches(), 99)) == 9


def test_one_image_has_no_standard_error_and_none_is_an_error() -> None:
    model = small_vit()
    model.preprocess = PREPROCESS
    (row, *_) = benchmark_explanations(model, bright_patches(), ["rollout"], limit=1, workers=0)
    assert np.isnan(row.deletion.error)
    with pytest.raises(VitrailError, match="the dataset has no images"):
        benchmark_explanations(
            model, ArrayDataset(np.zeros((0, 12, 15, 3), np.uint8), np.zeros(0, np.int64), ("a",)), workers=0
        )


def test_the_area_under_a_curve() -> None:
    assert auc(torch.tensor([[1.0, 0.0]])).item() == 0.5
