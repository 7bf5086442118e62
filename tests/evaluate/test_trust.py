"""Which map to trust: on a model whose evidence is known, the map that knows it wins, and masks are where the figure is."""

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
from vitrail.evaluate.trust import masks_of, some, trust
from vitrail.explain.faithfulness import area
from vitrail.explain.maps import METHODS

HOW = Preprocess((12, 15), mean=(0.5,) * 3, std=(0.5,) * 3)


def bright_patches() -> Arrays:
    """White in row 1, column 2, and dark noise elsewhere."""
    images = np.random.default_rng(0).integers(0, 60, (9, 12, 15, 3)).astype(np.uint8)
    images[:, 6:12, 10:15] = 255
    return Arrays(images, np.zeros(9, np.int64), ("a", "b", "c", "d", "e"))


def test_the_map_that_knows_the_evidence_beats_chance(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_it_does_not_depend_on_the_batch_but_for_chance() -> None:
    model = vit()
    model.preprocess = HOW
    one, other = (trust(model, bright_patches(), batch=size, workers=0) for size in (2, 9))
    for first, second in zip(one[1:], other[1:], strict=True):
        assert first.deletion.mean == pytest.approx(second.deletion.mean, abs=1e-5)
        assert first.insertion.error == pytest.approx(second.insertion.error, abs=1e-5)


def test_panes_know_where_the_figure_is() -> None:
    model = vit()
    model.preprocess = HOW
    source = Part(panes("test", 8, (24, 30)), np.array([5, 1, 7]))
    rows = trust(model, source, ["rollout"], workers=0)
    assert all(row.pointing is not None and row.overlap is not None for row in rows)
    masks = masks_of(source, [0, 2], Preprocess((24, 30)))
    assert masks is not None
    for mask, index in zip(masks, (5, 7), strict=True):
        assert_close(mask, torch.from_numpy(panes("test", 8, (24, 30)).scene(index).mask).float())


def test_a_limit_takes_pictures_from_all_over() -> None:
    assert some(bright_patches(), 3).indices.tolist() == [0, 4, 8]  # type: ignore[attr-defined]
    assert len(some(bright_patches(), 99)) == 9


def test_one_picture_has_no_error_and_none_no_answer() -> None:
    model = vit()
    model.preprocess = HOW
    (row, *_) = trust(model, bright_patches(), ["rollout"], limit=1, workers=0)
    assert np.isnan(row.deletion.error)
    with pytest.raises(VitrailError, match="there is no picture to read"):
        trust(model, Arrays(np.zeros((0, 12, 15, 3), np.uint8), np.zeros(0, np.int64), ("a",)), workers=0)


def test_a_curve_and_its_area() -> None:
    assert area(torch.tensor([[1.0, 0.0]])).item() == 0.5
