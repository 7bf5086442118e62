"""The page around the parts: accessible on every screen, in both themes, by keyboard alone."""

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page

from tests.browser.studio_page import (
    PARTS,
    TIMEOUT_MS,
    VIEWPORTS,
    RunningStudio,
    WatchedPage,
    open_page,
    open_part,
    paste_link,
    wait_until_idle,
)

pytestmark = pytest.mark.browser
MAX_TAB_STOPS = 150  # Tab stops in one part


def violations(page: Page, where: str | None, **options: object) -> list[tuple[str, list[str]]]:
    """Return the violated axe rules and their elements."""
    axe = Axe("0") if page.evaluate("'axe' in window") else Axe()  # inject its script only once per page
    violated = axe.run(page, context=where, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(rule["id"], [str(node["target"]) for node in rule["nodes"]][:5]) for rule in violated]


def axe_context(part: str) -> str | None:
    """Return the element to check: the layout around the parts only once."""
    return None if part == PARTS[0] else "#panel"


def test_axe_finds_nothing_in_any_part(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link(theme="light"))
    violations_by_part = {}
    for part in PARTS:
        open_part(page, part)
        violations_by_part[part] = violations(page, axe_context(part))
    assert not {where: what for where, what in violations_by_part.items() if what}


@pytest.mark.thorough
def test_axe_finds_enough_contrast_in_the_dark_theme(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link(theme="dark"))
    violations_by_part = {}
    for part in PARTS:
        open_part(page, part)
        violations_by_part[part] = violations(page, axe_context(part), runOnly=["color-contrast"])
    assert not {where: what for where, what in violations_by_part.items() if what}


@pytest.mark.thorough
def test_axe_finds_nothing_on_a_phone(browser: Browser, studio: RunningStudio) -> None:
    width, height = VIEWPORTS["phone"]
    page = browser.new_page(viewport={"width": width, "height": height}, has_touch=True, reduced_motion="reduce")
    page.set_default_timeout(TIMEOUT_MS)
    with WatchedPage(page):
        open_page(page, studio.link(theme="light"))
        violations_by_part = {}
        for part in PARTS:
            open_part(page, part)
            violations_by_part[part] = violations(page, axe_context(part))
        assert not {where: what for where, what in violations_by_part.items() if what}
    page.close()


@pytest.mark.thorough
def test_no_part_makes_the_page_scroll_sideways(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link())
    too_wide = {}
    for part in PARTS:
        open_part(page, part)
        for name, (width, height) in VIEWPORTS.items():
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(60)  # parts are resized in the next frame
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                too_wide[part, name] = wide
        page.set_viewport_size({"width": VIEWPORTS["laptop"][0], "height": VIEWPORTS["laptop"][1]})
    assert not too_wide


def focused_part(page: Page) -> str:
    return page.evaluate("document.activeElement.closest('[data-part]')?.dataset.part ?? document.activeElement.localName")


FOCUS_SCRIPT = """() => {
  const one = document.activeElement, look = getComputedStyle(one), box = one.getBoundingClientRect();
  const outline = look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2;
  return { lit: (outline || Boolean(one.closest("svg"))) && box.width > 0 && box.right > 0, // drawings have a focus style
    inside: Boolean(one.closest("#panel")), what: one.outerHTML.slice(0, 120) };
}"""


def has_visible_focus(page: Page) -> bool:
    """Return whether the keyboard focus is visible."""
    return page.evaluate(FOCUS_SCRIPT)["lit"]


@pytest.mark.thorough
def test_the_keyboard_moves_over_the_navigation_and_opens_parts(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link(part="image"))
    for _ in range(12):
        page.keyboard.press("Tab")
        assert has_visible_focus(page), page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        if focused_part(page) == "image":
            break
    assert focused_part(page) == "image"
    for part in PARTS[1:]:
        page.keyboard.press("ArrowRight")
        assert focused_part(page) == part
        assert has_visible_focus(page)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#panel > section.{part}:not([hidden])")
        wait_until_idle(page)
        assert focused_part(page) == part, "opening a part loses the keyboard focus"
        assert page.get_attribute(f"#parts li[data-part={part}] button", "aria-current") == "step"
    page.keyboard.press("ArrowLeft")
    assert focused_part(page) == PARTS[-2]


@pytest.mark.thorough
def test_every_tab_stop_is_visible_and_nothing_traps_the_focus(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link())
    invisible = {}
    for part in PARTS:
        open_part(page, part)
        page.focus("#panel")
        stops: list[dict[str, Any]] = []
        while len(stops) < MAX_TAB_STOPS:
            page.keyboard.press("Tab")
            stop = page.evaluate(FOCUS_SCRIPT)
            if not stop["inside"]:
                break
            stops.append(stop)
        assert 0 < len(stops) < MAX_TAB_STOPS, (part, stops[-1:])
        invisible[part] = [stop["what"] for stop in stops if not stop["lit"]]
    assert not {part: what for part, what in invisible.items() if what}


def test_the_patch_grid_takes_arrow_keys_and_announces(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link(part="attention"))
    wait_until_idle(page)
    page.focus("#side .patch-grid")
    announcements = []
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"):
        before = page.evaluate("document.querySelector('.attention-grid canvas').toDataURL()")
        page.keyboard.press(key)
        page.wait_for_function(
            "(before) => document.querySelector('.attention-grid canvas').toDataURL() !== before", arg=before
        )
        announcements.append(page.text_content("#side .patch-grid [aria-live]"))
    positions = ((0, 0), (1, 0), (1, 1), (0, 1))  # of a grid of four columns
    assert announcements == [f"patch {4 * row + column} (row {row}, column {column})" for row, column in positions]
    page.keyboard.press("Enter")
    wait_until_idle(page)
    assert "query=2" in page.url  # after the class token
    assert page.evaluate("document.activeElement.matches('#side .patch-grid')")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    wait_until_idle(page)
    assert "query=2" not in page.url, "Enter on the pinned patch unpins it"


@pytest.mark.thorough
def test_the_keyboard_focus_survives_a_checkpoint_a_click_and_a_theme(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link(part="lens"))
    box = "#top input[type=range]"
    page.focus(box)
    for steps in range(1, 3):
        page.keyboard.press("ArrowLeft")
        wait_until_idle(page)
        assert page.evaluate("document.activeElement.matches('#top input[type=range]')"), (
            "a new checkpoint loses the keyboard focus"
        )
        assert page.input_value(box) == str(int(page.get_attribute(box, "max") or 0) - steps)
    assert "step=" in page.url
    button = page.locator("#side .predictions button").nth(1)
    name = button.locator(".name").inner_text()
    button.focus()
    page.keyboard.press("Enter")
    wait_until_idle(page)
    assert "class=" in page.url
    assert page.evaluate("document.activeElement.querySelector('.name')?.textContent") == name
    page.focus("#top label[data-key=theme] select")
    page.keyboard.press("ArrowDown")
    wait_until_idle(page)
    assert "theme=light" in page.url
    assert page.evaluate("document.activeElement.matches('#top label[data-key=theme] select')")


def test_the_theme_is_in_the_url_and_survives_a_reload(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link())
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = {}
    for theme in ("light", "dark"):
        page.select_option("#top label[data-key=theme] select", theme)
        wait_until_idle(page)
        colours[theme] = page.evaluate(paper)
        page.reload()
        page.wait_for_selector("body[data-ready=true]")
        assert page.evaluate(paper) == colours[theme]
        assert page.input_value("#top label[data-key=theme] select") == theme
    assert colours["light"] != colours["dark"]


@pytest.mark.thorough
def test_a_link_includes_its_theme(page: Page, studio: RunningStudio) -> None:
    """Everything is drawn in its colours: the labels of the attention grid are drawn on a canvas."""
    drawings = []
    for theme in ("light", "dark"):
        open_page(page, studio.link(part="attention", image="sample-1", theme=theme))
        wait_until_idle(page)
        drawings.append(page.eval_on_selector(".attention-grid canvas", "(canvas) => canvas.toDataURL()"))
        page.goto("about:blank")
    assert drawings[0] != drawings[1]
    open_page(page, studio.link(part="attention", image="sample-1", theme="light"))
    wait_until_idle(page)
    paste_link(page, page.url.replace("theme=light", "theme=dark"))
    wait_until_idle(page)
    assert page.input_value("#top label[data-key=theme] select") == "dark"
    assert page.eval_on_selector(".attention-grid canvas", "(canvas) => canvas.toDataURL()") == drawings[1]


@pytest.mark.thorough
def test_on_a_phone_the_page_keeps_its_scroll_position(browser: Browser, studio: RunningStudio) -> None:
    width, height = VIEWPORTS["phone"]
    page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
    page.set_default_timeout(TIMEOUT_MS)
    with WatchedPage(page):
        open_page(page, studio.link(part="lens", image="sample-1"))
        wait_until_idle(page)
        box = page.locator("#parts [aria-current]").bounding_box()
        assert box is not None
        assert box["x"] > 60, "the previous part is visible"
        assert box["x"] + box["width"] < width - 60, "and the next one"
        page.evaluate("scrollTo(0, 500)")
        paste_link(page, page.url + "&step=6")
        wait_until_idle(page)
        assert page.evaluate("scrollY") == 500
    page.close()


@pytest.mark.thorough
def test_a_model_of_fourteen_by_fourteen_patches_shows_its_attention_grid(
    page: Page, zoo: tuple[RunningStudio, list[Path]]
) -> None:
    studio, paths = zoo
    open_page(page, studio.link(part="image", model=f"m{len(paths)}", image="sample-1"))
    wait_until_idle(page)
    page.click(".thumbnails button[data-image=sample-3]")
    open_part(page, "attention")
    wait_until_idle(page)
    assert "sample-3" in page.url
    assert page.inner_text(".attention .head-title").startswith("Layer 11, head 0")
    colours = """(canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    assert (
        page.eval_on_selector(".attention-grid canvas", colours) > 100
    )  # 36 maps of 196 patches, each on its own colour scale
