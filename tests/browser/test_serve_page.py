"""The page of ``vitrail serve`` in a browser: the labels of a classifier, and the fields of any other task."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Page, expect

import vitrail
from tests.browser.studio_page import ROOT, VIEWPORTS
from tests.small_models import multi_label_vit, small_vit
from tests.tasks.test_own_task import Brightness
from vitrail.data.preprocess import Preprocess
from vitrail.weights.save import save

WITH_TASK = "import sys, tests.tasks.test_own_task; from vitrail.cli.main import run; sys.exit(run(sys.argv[1:]))"


@contextmanager
def run_server(model: Path) -> Iterator[str]:
    """Serve a model in a process that knows the task of the tests."""
    command = [sys.executable, "-c", WITH_TASK, "serve", str(model), "--port", "0", "--json", "--threads", "1"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        process.communicate(timeout=30)


def save_model(path: Path, classes: int, task: dict[str, object]) -> Path:
    torch.manual_seed(0)
    model = small_vit(classes=classes)
    model.head = torch.nn.Linear(24, classes)
    model.preprocess, model.metadata = Preprocess((12, 15)), {"recipe": {"task": task}}
    return save(model, path, metadata=model.metadata)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (24, 30, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "cat.png")
    return tmp_path / "cat.png"


def submit(page: Page, url: str, image: Path, label: str = "") -> list[list[str]]:
    """Predict an image with the saliency map of a class, and return the cells of the table."""
    page.goto(url)
    page.fill("input[name=label]", label)
    page.set_input_files("input[type=file]", image)
    page.check("input[name=explain]")
    page.click("button")
    expect(page.locator("#out img")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return [row.locator("td").all_inner_texts() for row in page.locator("#out tr").all()]


def test_the_fields_of_another_task_are_shown(page: Page, tmp_path: Path, image: Path) -> None:
    model = save_model(tmp_path / "levels", 1, {"kind": Brightness().kind})
    (expected,) = vitrail.predict(model, [str(image)])
    with run_server(model) as url:
        ((name, value),) = submit(page, url, image)
        assert name == "level"
        assert float(value) == pytest.approx(expected.level, rel=1e-4)
        assert "levels: a model for test-brightness, served with torch." in page.inner_text("body")
        page.set_viewport_size(dict(zip(("width", "height"), VIEWPORTS["phone"], strict=True)))  # type: ignore[arg-type]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_classifier_shows_its_labels(page: Page, tmp_path: Path, image: Path) -> None:
    model = save_model(tmp_path / "one", 1, {"kind": "classification"})
    with run_server(model) as url:
        assert submit(page, url, image) == [["0", "100.00 %"]]
        assert "one: 1 class, served with torch." in page.inner_text("body")


def test_several_labels_are_shown_with_those_below_their_threshold(page: Page, tmp_path: Path, image: Path) -> None:
    model = multi_label_vit()
    save(model, tmp_path / "tags", metadata=model.metadata)
    (expected,) = vitrail.predict(model, [str(image)])
    others = [entry for entry in expected.top if entry.label not in expected.labels]
    assert expected.labels
    assert others
    with run_server(tmp_path / "tags") as url:
        shown = submit(page, url, image, label=others[0].label)
        assert [name for name, _ in shown] == [*expected.labels, *(f"{entry.label} (below its threshold)" for entry in others)]
        assert shown[0][1] == f"{100 * expected.probabilities[0]:.2f} %"
        assert "tags: any of 5 labels per image, served with torch." in page.inner_text("body")
