"""A detection model in the studio: its boxes with a threshold, the objects of the dataset, a box that is clicked, its run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page

import vitrail
from tests.browser.studio_page import (
    RunningStudio,
    capture_view,
    open_page,
    run_studio,
    view_differences,
    wait_until_idle,
)
from tests.browser.test_layout import violations
from tests.small_detector import random_detector
from vitrail.weights.save import save

pytestmark = pytest.mark.browser
BOXES = "figure[data-figure=boxes]"
DATA = "panes:train_size=30,size=48x64"


@pytest.fixture(scope="module")
def detecting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStudio]:
    """A studio with random weights, which find boxes in everything, and a short run on images of one class of object."""
    folder: Path = tmp_path_factory.mktemp("models")
    save(random_detector(), folder / "detector")  # 12 x 15 pixels, 2 x 3 patches
    settings = {"steps": 4, "schedule.warmup_steps": 0, "eval_every": 2, "checkpoint_every": 2, "batch_size": 10}
    run = vitrail.train(DATA, task="detect", model="mu/8", settings=settings, out=folder / "run", workers=0)
    with run_studio([folder / "detector", run.folder]) as running:
        yield running


def rows(page: Page) -> list[str]:
    return [text.replace("\n", " ") for text in page.locator(f"{BOXES} .box-list .row").all_inner_texts()]


def frames(page: Page) -> int:
    """Return how many frames are drawn: each has a halo, and the labels are not outlined."""
    return page.locator(f"{BOXES} .box-stage svg rect[fill=none]").count() // 2


def test_a_click_on_a_box_explains_it_in_every_part(page: Page, detecting: RunningStudio) -> None:
    open_page(page, detecting.link(part="prediction", image="sample-1", threshold=0))
    wait_until_idle(page)
    best = page.inner_text(f"{BOXES} .chosen")
    assert best.startswith("Explained: box 0 (")
    page.click(f"{BOXES} .box-list button >> nth=2")
    wait_until_idle(page)
    assert "box=2" in page.url
    label, score = rows(page)[2].rsplit(" ", 1)
    assert page.inner_text("#side h2.small") == f"Prediction for box 2 ({label})"
    chosen = page.locator("#side .predictions li.selected").inner_text().split("\n")
    assert chosen[0] == label
    assert float(chosen[-1].removesuffix(" %")) / 100 == pytest.approx(float(score), abs=0.006)
    page.click(f"{BOXES} button:has-text('Its attention')")
    wait_until_idle(page)
    assert "patch " in page.inner_text(".attention .head-title")
    page.go_back()
    wait_until_idle(page)
    box = page.locator(f"{BOXES} .box-stage").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    pointed = page.inner_text(f"{BOXES} .pixel-info")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    wait_until_idle(page)
    assert "of the image" in pointed
    assert pointed.split(",")[0] in page.inner_text(f"{BOXES} .chosen")
    page.click(f"{BOXES} button:has-text('Explain the best box')")
    wait_until_idle(page)
    assert "box=" not in page.url
    assert page.inner_text(f"{BOXES} .chosen") == best


def test_the_threshold_moves_without_a_request(page: Page, detecting: RunningStudio) -> None:
    requested: list[str] = []
    open_page(page, detecting.link(part="prediction", image="sample-1"))
    wait_until_idle(page)
    assert "No box reaches the threshold of its class; the highest score is 0." in page.inner_text(f"{BOXES} [role=status]")
    assert (rows(page), frames(page)) == ([], 1)  # the best one is explained, and drawn
    page.on("request", lambda request: requested.append(request.url))
    page.fill(f"{BOXES} input[type=range]", "0")
    scores = [float(row.rsplit(" ", 1)[1]) for row in rows(page)]
    middle = round(100 * scores[0])  # rounded as they are shown, so that others may reach it too
    for percent in (0, middle, 100):
        page.fill(f"{BOXES} input[type=range]", str(percent))
        wait_until_idle(page)
        shown = rows(page)
        assert frames(page) == len(shown) + 1
        assert sum(score > percent / 100 + 0.005 for score in scores) <= len(shown)
        assert len(shown) <= sum(score >= percent / 100 for score in scores)
    assert len(scores) > 5
    page.click(f"{BOXES} button:has-text('That of each class')")
    assert page.inner_text(f"{BOXES} output") == "0.50"
    assert requested == []
    page.fill(f"{BOXES} input[type=range]", "2")
    wait_until_idle(page)
    before, link = capture_view(page), page.url
    page.goto("about:blank")
    open_page(page, link)
    assert not view_differences(before, capture_view(page))


def test_the_boxes_take_the_keyboard_and_axe_finds_nothing(page: Page, detecting: RunningStudio) -> None:
    open_page(page, detecting.link(part="prediction", image="sample-1", threshold=0, theme="light"))
    wait_until_idle(page)
    page.focus(f"{BOXES} .box-list button[tabindex='0']")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.index") == "1"
    assert page.locator(f"{BOXES} .box-list button[tabindex='0']").count() == 1
    page.keyboard.press("Enter")
    wait_until_idle(page)
    assert "box=1" in page.url
    assert page.evaluate("document.activeElement.dataset.index") == "1"
    assert violations(page, None) == []
    page.select_option("#top label[data-key=theme] select", "dark")
    wait_until_idle(page)
    assert violations(page, "#panel", runOnly=["color-contrast"]) == []


def test_removed_patches_change_the_boxes(page: Page, detecting: RunningStudio) -> None:
    open_page(page, detecting.link(part="prediction", image="sample-1", threshold=0, box=1))
    wait_until_idle(page)
    before = rows(page)
    page.click("text=Random third")
    wait_until_idle(page)
    assert rows(page) != before
    assert page.locator(f"{BOXES} .box-list button").count() == 0  # they are those of another image
    page.click(".prediction .controls button:text-is('None')")
    wait_until_idle(page)
    assert rows(page) == before
    assert page.is_disabled("button[data-mode=drop]")


@pytest.mark.parametrize("size", [(1, 1), (3, 900), (4000, 3000)])
def test_images_of_any_size_have_boxes_inside_of_the_stage(
    page: Page, detecting: RunningStudio, tmp_path: Path, size: tuple[int, int]
) -> None:
    Image.new("RGB", size, (200, 60, 90)).save(tmp_path / "any.png")
    open_page(page, detecting.link(part="image", threshold=0))
    page.set_input_files("input[type=file]", tmp_path / "any.png")
    wait_until_idle(page)
    page.click("#parts li[data-part=prediction] button")
    wait_until_idle(page)
    assert rows(page)
    page.hover(f"{BOXES} .box-list button >> nth=0")
    place = [int(word.strip(",")) for word in page.inner_text(f"{BOXES} .pixel-info").split() if word.strip(",").isdigit()]
    assert 0 <= place[0] <= place[1] <= size[0]
    assert 0 <= place[2] <= place[3] <= size[1]
    outside = """(drawing) => {
        const { width, height } = drawing.viewBox.baseVal;
        return [...drawing.querySelectorAll("rect")].map((one) => one.getBBox()).filter((one) =>
            one.x < 0 || one.y < 0 || one.x + one.width > width + 1 || one.y + one.height > height + 1).length;
    }"""
    assert page.eval_on_selector(f"{BOXES} .box-stage svg", outside) == 0


def test_a_run_shows_average_precision_and_the_objects_of_its_dataset(page: Page, detecting: RunningStudio) -> None:
    open_page(page, detecting.link(part="run", model="m1"))
    wait_until_idle(page)
    assert "AP50 " in page.inner_text(".run .progress")
    assert page.inner_text("figure[data-figure=run-accuracy] h2") == "Average precision"
    assert page.inner_text("figure[data-figure=classes] tbody th") == "figure"
    assert page.locator("figure[data-figure=confusion]").is_hidden()
    worst = page.locator("figure[data-figure=highest-loss] .thumbs button").first
    assert "AP50" in worst.inner_text()
    objects = int(worst.inner_text().split("\n")[1].split()[0])
    worst.click()
    page.click("#parts li[data-part=prediction] button")
    wait_until_idle(page)
    assert f"The dataset has {objects} object" in page.inner_text(f"{BOXES} [role=status]")
    with_objects = frames(page)
    page.uncheck(f"{BOXES} input[type=checkbox]")
    assert with_objects - frames(page) == objects
    page.click("#parts li[data-part=image] button")
    wait_until_idle(page)
    assert page.locator(".thumb .text").first.inner_text().split()[1].startswith("object")
    assert "boxes=1" in (page.locator(".thumb img").first.get_attribute("src") or "")


def test_a_saved_page_keeps_the_boxes_and_their_threshold(page: Page, detecting: RunningStudio, tmp_path: Path) -> None:
    open_page(page, detecting.link(part="prediction", image="sample-1", threshold=2, box=1))
    wait_until_idle(page)
    before = rows(page)
    with page.expect_download() as download:
        page.click("#top button:has-text('Save this page')")
    download.value.save_as(tmp_path / "saved.html")
    open_page(page, (tmp_path / "saved.html").as_uri())
    wait_until_idle(page)
    assert rows(page) == before
    page.fill(f"{BOXES} input[type=range]", "100")
    assert rows(page) == []
    assert page.inner_text(f"{BOXES} .chosen").startswith("Explained: box 1 (")
