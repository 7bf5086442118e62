"""The reliability diagram shows its bins, and a run's report has it with confidence intervals."""

from pathlib import Path
from xml.etree import ElementTree

import torch

from tests.training.small_run import recipe
from vitrail.evaluation.calibration import compute_reliability
from vitrail.plot.reliability_diagram import reliability_diagram
from vitrail.report.run_page import run_page
from vitrail.training.loop import Hardware, fit


def test_there_is_a_bar_for_every_bin_with_images() -> None:
    labels = torch.arange(40) % 7
    result = compute_reliability(3 * torch.randn(40, 7), labels)
    drawing = ElementTree.fromstring(reliability_diagram("Confidence & accuracy", result))
    bars = drawing.findall(".//rect")
    shown = [title.text or "" for bar in bars for title in bar.findall("title")]
    assert [int(text.split()[0]) for text in shown] == [count for count in result.counts.tolist() if count]


def test_the_report_of_a_run_has_confidence_intervals(tmp_path: Path) -> None:
    fit(recipe(steps=4), tmp_path / "run", Hardware("cpu", 1, 0))
    page = run_page(tmp_path / "run")
    for text in ("95 % interval", "Reliability", '<th class="number">F1</th>', "Expected calibration error"):
        assert text in page
