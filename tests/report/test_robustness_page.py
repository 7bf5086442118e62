"""The robustness page is self-contained, with a panel and example images per corruption, and every number of the table."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.evaluation.test_classification import LABELS, image_folder, random_model
from vitrail.data.sources.open import open_dataset
from vitrail.evaluation.robustness import RobustnessResult, evaluate_robustness
from vitrail.report.robustness_page import robustness_page


@pytest.fixture
def results(tmp_path: Path) -> dict[str, RobustnessResult]:
    data = open_dataset(image_folder(tmp_path, *LABELS[:3], each=6))
    return {"runs/<one>": evaluate_robustness(random_model(1), data), "two": evaluate_robustness(random_model(2), data)}


class Balanced(HTMLParser):
    """A parser that checks that every tag is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_a_panel_per_corruption_and_all_numbers(results: dict[str, RobustnessResult]) -> None:
    built = robustness_page(results, ["a <note>"])
    reader = Balanced()
    reader.feed(built)
    assert reader.open == []
    assert built.count("<svg") == 7
    assert built.count("</title></polyline>") == 14
    assert built.count("data:image/webp;base64,") == 6 * 6 + 2  # shuffling has one severity
    assert not re.search(r'(src|href)="(?!data:)', built)
    assert "runs/<one>" not in built
    assert "a &lt;note&gt;" in built
    for each in results.values():
        for name, score in each.scores.items():
            assert f"<td>{score.mean:.1%}</td>" in built or f">{score.mean:.1%}<" in built, name
            assert all(f">{right:.1%}<" in built for right in score.top1)


def test_one_model_has_no_comparison(results: dict[str, RobustnessResult]) -> None:
    built = robustness_page({"one": results["two"]})
    assert "difference in points</th>" not in built
    assert built.count("</title></polyline>") == 7
