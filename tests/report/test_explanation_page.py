"""The explanation page of every published kind of model has its figures, and the numbers of ``vitrail.explain``."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.data.images import image_bytes
from tests.small_models import PUBLISHED_KINDS, small_vit
from tests.tiers import quick_only
from vitrail import explain
from vitrail.data.preprocess import vit_preprocess
from vitrail.evaluation.explanations import explain_images
from vitrail.explain.head_statistics import head_statistics
from vitrail.models.config import Pool
from vitrail.report.explanation_page import POOL_QUERIES, write_explanation_page


@pytest.mark.parametrize("name", quick_only(PUBLISHED_KINDS, "bias by a table", "class token and register"))
def test_a_page_has_the_numbers_of_explain(name: str, tmp_path: Path) -> None:
    model: Any = small_vit(**PUBLISHED_KINDS[name])
    model.preprocess = vit_preprocess(model.config.image, 3)
    file = tmp_path / "image.png"
    file.write_bytes(image_bytes(3))
    (explanation,) = explain_images(model, [file], methods=["rollout"])
    heads = head_statistics(model, [torch.randn(2, 3, 12, 15)])
    written = write_explanation_page(tmp_path / "page", model, [explanation], heads)
    page = (tmp_path / "page" / written[-1]).read_text()
    assert f"query: {POOL_QUERIES[model.config.pool]}" in page
    with np.load(tmp_path / "page" / "model.npz") as arrays:
        assert_allclose(arrays["positions"], explain.position_similarity(model).numpy(), rtol=1e-5)
        assert_allclose(arrays["entropy"], heads.entropy.numpy(), rtol=1e-5)


def test_every_pooling_has_a_name() -> None:
    assert set(POOL_QUERIES) == set(get_args(Pool))
