"""The few-shot section equals ``vitrail probe`` on a bounded draw, and a report is complete without it."""

from pathlib import Path

import pytest

from tests.evaluate.test_evaluate import model
from vitrail.data.sources.open import pictures
from vitrail.evaluate import features
from vitrail.evaluate.probe import probe
from vitrail.report import fewshot as module
from vitrail.report.fewshot import few_shots, fewshot_part
from vitrail.weights.checkpoint import save


@pytest.fixture(autouse=True)
def _a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save(model(), "best")


def test_on_all_images_it_equals_the_probe() -> None:
    data = pictures("panes:count=90,size=16")
    found = few_shots(Path("best"), data, "test", 10**6)
    assert found == probe(model(), data, ("fewshot",)).fewshot
    assert [one.shots for one in found] == [1, 5, 10, 25]


def test_it_uses_a_tenth_of_the_images_seen_and_a_few_thousand_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pictures("panes:count=900,size=16")
    seen: list[int] = []
    plain = features.features_of
    monkeypatch.setattr(features, "features_of", lambda m, images: seen.append(len(images)) or plain(m, images))  # type: ignore[func-returns-value]
    found = few_shots(Path("best"), data, "test", 4400)
    classes = len(data.names)
    each = 220 // classes
    assert sum(seen) <= 440
    assert [one.shots for one in found] == [shots for shots in (1, 5, 10, 25) if 2 * shots <= each]  # draws can differ
    assert all(one.short == 0 for one in found)
    seen.clear()
    monkeypatch.setattr(module, "MOST", 300)
    few_shots(Path("best"), data, "validation", 10**9)
    assert 0 < sum(seen) <= 300


def test_a_short_run_a_missing_model_and_a_result_on_train_have_no_section() -> None:
    data = pictures("panes:count=200,size=16")
    assert few_shots(Path("best"), data, "test", 200) == ()
    assert few_shots(Path("best"), data, "train", 10**6) == ()
    assert list(fewshot_part(Path("gone"), data, "test", 10**6)) == []


def test_the_section_has_a_row_per_number_of_shots() -> None:
    data = pictures("panes:count=90,size=16")
    page = "".join(fewshot_part(Path("best"), data, "test", 10**6))
    for one in few_shots(Path("best"), data, "test", 10**6):
        assert f'<td class="number">{one.shots}</td><td class="number">{one.accuracy:.2%}</td>' in page
    assert "Few-shot accuracy" in page
