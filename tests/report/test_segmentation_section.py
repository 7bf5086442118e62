"""The report of a segmentation run states its result, by the numbers that the run has saved."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.plot.class_colours import class_colour
from vitrail.report.run_page import run_page
from vitrail.tasks.resampling import finite_interval
from vitrail.tasks.segmentation_metrics import bootstrap_segmentation
from vitrail.training.run import Run
from vitrail.training.trained_run import TrainedRun

PANES = "panes:train_size=60,size=24x32"
SHORT = {"steps": 6, "schedule.warmup_steps": 0, "eval_every": 3, "checkpoint_every": 6, "batch_size": 10}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    out = tmp_path_factory.mktemp("runs") / "run"
    run = vitrail.train(PANES, task="segment", model="mu/8", settings=SHORT, out=out, workers=0)
    assert isinstance(run, TrainedRun)
    return run


def test_the_headline_is_the_mean_iou_with_its_interval(trained: TrainedRun) -> None:
    page = run_page(Run(trained.folder))
    with np.load(trained.folder / "predictions.npz") as file:
        confusion, boundary = torch.from_numpy(file["confusion"]), torch.from_numpy(file["boundary"])
    low, high = finite_interval(bootstrap_segmentation(confusion, boundary)[0]["miou"])
    assert f"{trained.result['test']['miou']:.2%}" in page
    assert f"mean IoU on test, 95 % interval {low:.2%} to {high:.2%}" in page
    largest = confusion.sum((0, 2)).max() / confusion.sum()
    assert f"always the largest class: {largest:.2%}" in page


def test_each_class_has_its_colour_and_its_scores(trained: TrainedRun) -> None:
    page = run_page(Run(trained.folder))
    table = page[page.index("<h2>Classes</h2>") : page.index("<h2>Confusion")]
    for label, row in enumerate(trained.result["classes"]):
        line = next(line for line in table.splitlines() if row["name"] in line)
        assert class_colour(label) in line
        for name in ("iou", "dice", "boundary_iou"):
            assert f"{float(row[name]):.1%}" in line or "&ndash;" in line
    matrix = page[page.index("<h2>Confusion") : page.index("<h2>Boundaries")]
    percents = [int(cell or 0) for cell in re.findall(r'<td style="--fraction:[\d.]+">(\d*)</td>', matrix)]
    assert [percents[0] + percents[1], percents[2] + percents[3]] == pytest.approx([100, 100], abs=1)


def test_the_page_shows_images_and_is_self_contained(trained: TrainedRun) -> None:
    page = trained.report.read_text()
    assert "Lowest mean IoU: image, mask, prediction and errors" in page
    assert "Highest mean IoU" in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert f"vitrail predict {trained.folder} IMAGES --out masks --overlay" in page
    for title in ("Mean IoU", "Mean Dice", "Pixel accuracy", "Boundary IoU"):
        assert page.count(f'aria-label="{title}"') == 1
    accuracy = page[page.index('aria-label="Pixel accuracy"') :].split("</svg>")[0]
    assert "<title>training</title>" in accuracy
    assert "<title>validation</title>" in accuracy
    assert 'aria-label="Accuracy"' not in page


def test_a_run_without_its_weights_or_its_counts_still_has_a_page(trained: TrainedRun, tmp_path: Path) -> None:
    shutil.copytree(trained.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "best")
    page = run_page(Run(tmp_path / "run"))
    assert "<h2>Classes</h2>" in page
    assert "Best and worst images" not in page
    (tmp_path / "run" / "predictions.npz").unlink()
    assert "mean IoU on test" in run_page(Run(tmp_path / "run"))
