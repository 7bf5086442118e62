"""Attention statistics are logged with every evaluation: those of ``explain.head_statistics``, bounded in memory."""

from pathlib import Path

import pytest
import torch

from tests.small_models import small_vit
from tests.training.small_run import recipe
from vitrail.data.loader import build_eval_loader
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.explain.head_statistics import head_statistics
from vitrail.models.build import build
from vitrail.models.config import ResNetConfig
from vitrail.report.run_page import run_page
from vitrail.training import monitors
from vitrail.training.monitors import compute_attention_stats
from vitrail.training.run import Run
from vitrail.training.trainer import fit

PREPROCESS = Preprocess((12, 15), interpolation="bilinear")


def test_it_is_the_mean_over_heads_on_the_first_images() -> None:
    model, source = small_vit(), build_panes("validation", 50, (24, 30))
    stats = compute_attention_stats(model, source, PREPROCESS)
    images = next(iter(build_eval_loader(source, PREPROCESS, 32).batches(workers=0))).images
    expected = head_statistics(model, [images])
    assert stats is not None
    assert stats["distance"] == pytest.approx(expected.distance.mean(1).tolist())
    assert stats["entropy"] == pytest.approx(expected.entropy.mean(1).tolist())


def test_fewer_images_are_used_if_attention_weights_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    batch_sizes: list[int] = []

    def count_images(_: object, batches: object) -> object:
        batch_sizes.extend(images.shape[0] for images in batches)  # type: ignore[attr-defined]
        return head_statistics(small_vit(), [torch.randn(1, 3, 12, 15)])

    monkeypatch.setattr(monitors, "head_statistics", count_images)
    monkeypatch.setattr(monitors, "MAX_ATTENTION_BYTES", 4 * 3 * 49 * 5)
    compute_attention_stats(small_vit(), build_panes("validation", 50, (24, 30)), PREPROCESS)
    monkeypatch.setattr(monitors, "MAX_ATTENTION_BYTES", 1)
    compute_attention_stats(small_vit(), build_panes("validation", 50, (24, 30)), PREPROCESS)
    assert batch_sizes == [5, 1]


def test_a_run_logs_it_with_every_evaluation(tmp_path: Path) -> None:
    fit(recipe(), tmp_path / "run")
    lines = Run(tmp_path / "run").log_rows()
    rows = [line for line in lines if "attention_stats" in line]
    assert [line["step"] for line in rows] == [line["step"] for line in lines if "validation" in line] == [4, 8, 12]
    assert all(len(line["attention_stats"]["distance"]) == len(line["attention_stats"]["entropy"]) == 2 for line in rows)
    page = run_page(Run(tmp_path / "run"))
    assert "Mean attention distance" in page
    assert "layer 1" in page
    assert "Saliency of the worst errors" in page


def test_a_resnet_has_no_attention_statistics() -> None:
    model = build(ResNetConfig(stages=(1, 1), width=32, image=(32, 32), classes=3))
    assert compute_attention_stats(model, build_panes("validation", 5, (32, 32)), Preprocess((32, 32))) is None
