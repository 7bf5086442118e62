"""The few-shot section equals ``vitrail probe`` on a bounded draw, and a report is complete without it."""

from pathlib import Path

import pytest

from tests.evaluation.test_classification import random_model
from vitrail.data.sources.open import open_dataset
from vitrail.evaluation.probe import probe
from vitrail.inference.predictor import TorchPredictor
from vitrail.report import fewshot_section as module
from vitrail.report.fewshot_section import fewshot_accuracies, fewshot_section
from vitrail.weights.save import save


@pytest.fixture(autouse=True)
def _saved_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save(random_model(), "best")


def test_on_all_images_it_equals_the_probe() -> None:
    data = open_dataset("panes:train_size=90,size=16")
    result = fewshot_accuracies(Path("best"), data, "test", 10**6)
    assert result == probe(random_model(), data, ("fewshot",)).fewshot
    assert [one.shots for one in result] == [1, 5, 10, 25]


def test_it_uses_a_tenth_of_the_images_seen_and_a_few_thousand_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset("panes:train_size=900,size=16")
    batch_sizes: list[int] = []
    plain = TorchPredictor.features
    monkeypatch.setattr(TorchPredictor, "features", lambda p, images: batch_sizes.append(len(images)) or plain(p, images))  # type: ignore[func-returns-value]
    result = fewshot_accuracies(Path("best"), data, "test", 4400)
    classes = len(data.class_names)
    each = 220 // classes
    assert sum(batch_sizes) <= 440
    assert [one.shots for one in result] == [shots for shots in (1, 5, 10, 25) if 2 * shots <= each]  # draws can differ
    assert all(one.short_classes == 0 for one in result)
    batch_sizes.clear()
    monkeypatch.setattr(module, "MAX_IMAGES", 300)
    fewshot_accuracies(Path("best"), data, "validation", 10**9)
    assert 0 < sum(batch_sizes) <= 300


def test_a_short_run_a_missing_model_and_a_result_on_train_have_no_section() -> None:
    data = open_dataset("panes:train_size=200,size=16")
    assert fewshot_accuracies(Path("best"), data, "test", 200) == ()
    assert fewshot_accuracies(Path("best"), data, "train", 10**6) == ()
    assert list(fewshot_section(Path("gone"), data, "test", 10**6)) == []


def test_the_section_has_a_row_per_number_of_shots() -> None:
    data = open_dataset("panes:train_size=90,size=16")
    page = "".join(fewshot_section(Path("best"), data, "test", 10**6))
    for one in fewshot_accuracies(Path("best"), data, "test", 10**6):
        assert f'<td class="number">{one.shots}</td><td class="number">{one.accuracy:.2%}</td>' in page
    assert "Few-shot accuracy" in page
