"""A segmentation model in the studio: the mask over the image, its confidence, a pixel that is clicked, and the brush."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

import vitrail
from tests.browser.studio_page import RunningStudio, capture_view, open_page, run_studio, view_differences, wait_until_idle
from tests.browser.test_layout import violations
from tests.explain.test_region import NAMES, segmenter
from vitrail.training.trained_run import TrainedRun
from vitrail.weights.save import save

pytestmark = pytest.mark.browser
MASK = "figure[data-figure=mask]"


@pytest.fixture(scope="module")
def segmenting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStudio]:
    folder: Path = tmp_path_factory.mktemp("models") / "segmenter"
    save(segmenter(), folder)  # 12 x 15 pixels, 2 x 3 patches
    with run_studio([folder]) as running:
        yield running


def painted(page: Page) -> str:
    return page.eval_on_selector(f"{MASK} canvas.over", "(canvas) => canvas.toDataURL()")


def test_a_click_on_the_mask_explains_a_pixel_in_every_part(page: Page, segmenting: RunningStudio) -> None:
    open_page(page, segmenting.link(part="prediction", image="sample-1"))
    wait_until_idle(page)
    assert "pixels that are predicted as" in page.inner_text("#side h2.small")
    box = page.locator(f"{MASK} .patch-grid").bounding_box()
    assert box is not None
    position = {"x": box["width"] * 7.5 / 15, "y": box["height"] * 4.5 / 12}
    page.click(f"{MASK} .patch-grid", position={"x": position["x"], "y": position["y"]})
    wait_until_idle(page)
    assert "pixel=7%2C4" in page.url
    assert page.inner_text("#side h2.small") == "Prediction for the pixel at column 7, row 4"
    predicted = page.inner_text(f"{MASK} .pixel-info")
    assert predicted.startswith("column 7, row 4: ")
    best = page.locator("#side .predictions li").first.inner_text().split("\n")
    assert predicted == f"column 7, row 4: {best[0]}, {best[-1]}"
    page.click(f"{MASK} button:has-text('Its attention')")
    wait_until_idle(page)
    assert "patch 1 (row 0, column 1)" in page.inner_text(".attention .head-title")
    page.go_back()
    wait_until_idle(page)
    page.click(f"{MASK} button:has-text('Explain the whole region')")
    wait_until_idle(page)
    assert "pixel=" not in page.url


def test_the_mask_takes_the_keyboard_and_axe_finds_nothing(page: Page, segmenting: RunningStudio) -> None:
    open_page(page, segmenting.link(part="prediction", image="sample-1", theme="light"))
    wait_until_idle(page)
    page.focus(f"{MASK} .patch-grid")
    for key in ("ArrowDown", "ArrowDown", "Shift+ArrowRight"):
        page.keyboard.press(key)
    announced = page.text_content(f"{MASK} .patch-grid [aria-live]") or ""
    assert announced.startswith("column 5, row 1: ")
    assert any(name in announced for name in NAMES)
    page.keyboard.press("Enter")
    wait_until_idle(page)
    assert "pixel=5%2C1" in page.url
    assert page.evaluate("document.activeElement.matches('[data-figure=mask] .patch-grid')")
    assert violations(page, None) == []
    page.select_option("#top label[data-key=theme] select", "dark")
    page.click(f"{MASK} button[data-overlay=confidence]")
    wait_until_idle(page)
    assert violations(page, "#panel", runOnly=["color-contrast"]) == []


def test_classes_confidence_and_the_brush_change_what_is_painted(page: Page, segmenting: RunningStudio) -> None:
    open_page(page, segmenting.link(part="prediction", image="sample-1"))
    wait_until_idle(page)
    views = [painted(page)]
    page.locator(f"{MASK} .legend input").first.uncheck()
    views.append(painted(page))
    page.locator(f"{MASK} .legend input").first.check()
    assert painted(page) == views[0]
    page.click(f"{MASK} button[data-overlay=confidence]")
    views.append(painted(page))
    page.click("text=Random third")
    wait_until_idle(page)
    views.append(painted(page))
    assert len(set(views)) == len(views)
    page.fill(f"{MASK} input[type=range]", "20")
    assert page.eval_on_selector(f"{MASK} canvas.over", "(canvas) => canvas.style.opacity") == "0.2"
    assert page.is_disabled("button[data-mode=drop]")
    before, link = capture_view(page), page.url
    page.goto("about:blank")
    open_page(page, link)
    assert not view_differences(before, capture_view(page))


@pytest.mark.thorough
def test_its_training_run_shows_the_iou_of_each_class(page: Page, tmp_path: Path) -> None:
    settings = {"steps": 4, "eval_every": 2, "checkpoint_every": 4, "schedule.warmup_steps": 0, "batch_size": 10}
    run = vitrail.train(
        "panes:train_size=40,size=24x32", task="segment", model="mu/8", settings=settings, out=tmp_path / "run", workers=0
    )
    assert isinstance(run, TrainedRun)
    with run_studio([run.folder]) as studio:
        open_page(page, studio.link(part="run"))
        wait_until_idle(page)
        assert f"mean IoU {100 * run.metrics['miou']:.1f} % on test images" in page.inner_text(".progress")
        legend = page.inner_text("figure[data-figure=run-accuracy]")
        for line in ("training, pixel accuracy", "validation, pixel accuracy", "validation, mean IoU"):
            assert line in legend
        table = page.inner_text("table.label-metrics")
        for row in run.result["classes"]:
            assert f"{row['name']}\t{100 * row['iou']:.1f} %" in table
        for figure in ("confusion", "highest-loss"):
            assert page.locator(f"figure[data-figure={figure}]").is_hidden()
