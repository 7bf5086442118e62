"""The page around the parts: everybody can read it, on every screen, in either theme, by keyboard alone."""

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page

from tests.browser.opening import LONG, PARTS, SIZES, Studio, Watched, look, paste, settled, visit

pytestmark = pytest.mark.browser
MANY = 150  # stops of the keyboard in one part


def violations(page: Page, where: str | None, **options: object) -> list[tuple[str, list[str]]]:
    """Of the rules that axe knows, and where."""
    axe = Axe("0") if page.evaluate("'axe' in window") else Axe()  # a page takes its half megabyte of script once
    found = axe.run(page, context=where, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [(rule["id"], [str(node["target"]) for node in rule["nodes"]][:5]) for rule in found]


def whole_or_part(part: str) -> str | None:
    """What surrounds the parts is looked at once."""
    return None if part == PARTS[0] else "#panel"


def test_axe_finds_nothing_in_any_part(page: Page, studio: Studio) -> None:
    look(page, studio.at(theme="light"))
    found = {}
    for part in PARTS:
        visit(page, part)
        found[part, "light"] = violations(page, whole_or_part(part))
        page.select_option("#top label[data-key=theme] select", "dark")
        page.wait_for_timeout(50)
        found[part, "dark"] = violations(page, whole_or_part(part), runOnly=["color-contrast"])
        page.select_option("#top label[data-key=theme] select", "light")
    assert not {where: what for where, what in found.items() if what}


def test_axe_finds_nothing_on_a_phone(browser: Browser, studio: Studio) -> None:
    width, height = SIZES["phone"]
    page = browser.new_page(viewport={"width": width, "height": height}, has_touch=True, reduced_motion="reduce")
    page.set_default_timeout(LONG)
    with Watched(page):
        look(page, studio.at(theme="light"))
        found = {}
        for part in PARTS:
            visit(page, part)
            found[part] = violations(page, whole_or_part(part))
        assert not {where: what for where, what in found.items() if what}
    page.close()


def test_no_part_makes_the_page_scroll_sideways(page: Page, studio: Studio) -> None:
    look(page, studio.at())
    found = {}
    for part in PARTS:
        visit(page, part)
        for name, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_timeout(60)  # parts follow the window's size in the next frame
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                found[part, name] = wide
        page.set_viewport_size({"width": SIZES["laptop"][0], "height": SIZES["laptop"][1]})
    assert not found


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.closest('[data-part]')?.dataset.part ?? document.activeElement.localName")


LIT = """() => {
  const one = document.activeElement, look = getComputedStyle(one), box = one.getBoundingClientRect();
  const outline = look.outlineStyle !== "none" && parseFloat(look.outlineWidth) >= 2;
  return { lit: (outline || Boolean(one.closest("svg"))) && box.width > 0 && box.right > 0, // drawings have edges of their own
    inside: Boolean(one.closest("#panel")), what: one.outerHTML.slice(0, 120) };
}"""


def outlined(page: Page) -> bool:
    """Somebody who does not use a mouse sees where the keyboard is."""
    return page.evaluate(LIT)["lit"]


def test_the_keyboard_walks_the_story_and_opens_parts(page: Page, studio: Studio) -> None:
    look(page, studio.at(part="picture"))
    for _ in range(12):
        page.keyboard.press("Tab")
        assert outlined(page), page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
        if focused(page) == "picture":
            break
    assert focused(page) == "picture"
    for part in PARTS[1:]:
        page.keyboard.press("ArrowRight")
        assert focused(page) == part
        assert outlined(page)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#panel > section.{part}:not([hidden])")
        settled(page)
        assert focused(page) == part, "opening a part loses the keyboard's place"
        assert page.get_attribute(f"#story li[data-part={part}] button", "aria-current") == "step"
    page.keyboard.press("ArrowLeft")
    assert focused(page) == PARTS[-2]


def test_everything_that_tab_reaches_is_seen_and_nothing_traps_it(page: Page, studio: Studio) -> None:
    look(page, studio.at())
    found = {}
    for part in PARTS:
        visit(page, part)
        page.focus("#panel")
        stops: list[dict[str, Any]] = []
        while len(stops) < MANY:
            page.keyboard.press("Tab")
            stop = page.evaluate(LIT)
            if not stop["inside"]:
                break
            stops.append(stop)
        assert 0 < len(stops) < MANY, (part, stops[-1:])
        found[part] = [stop["what"] for stop in stops if not stop["lit"]]
    assert not {part: what for part, what in found.items() if what}


def test_the_patch_grid_takes_arrow_keys_and_speaks(page: Page, studio: Studio) -> None:
    look(page, studio.at(part="attention"))
    settled(page)
    page.focus("#side .patchgrid")
    spoken = []
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"):
        before = page.evaluate("document.querySelector('.wall canvas').toDataURL()")
        page.keyboard.press(key)
        page.wait_for_function("(before) => document.querySelector('.wall canvas').toDataURL() !== before", arg=before)
        spoken.append(page.text_content("#side .patchgrid [aria-live]"))
    places = ((0, 0), (1, 0), (1, 1), (0, 1))  # of a grid of four columns
    assert spoken == [f"patch {4 * row + column} (row {row}, column {column})" for row, column in places]
    page.keyboard.press("Enter")
    settled(page)
    assert "query=2" in page.url  # after the class token
    assert page.evaluate("document.activeElement.matches('#side .patchgrid')")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    settled(page)
    assert "query=2" not in page.url, "Enter on the pinned patch lets it go"


def test_the_keyboard_keeps_its_place_over_a_scrub_a_click_and_a_theme(page: Page, studio: Studio) -> None:
    look(page, studio.at(part="lens"))
    box = "#top input[type=range]"
    page.focus(box)
    for steps in range(1, 3):
        page.keyboard.press("ArrowLeft")
        settled(page)
        assert page.evaluate("document.activeElement.matches('#top input[type=range]')"), "a scrub loses the keyboard's place"
        assert page.input_value(box) == str(int(page.get_attribute(box, "max") or 0) - steps)
    assert "step=" in page.url
    button = page.locator("#side .answer button").nth(1)
    name = button.locator(".name").inner_text()
    button.focus()
    page.keyboard.press("Enter")
    settled(page)
    assert "class=" in page.url
    assert page.evaluate("document.activeElement.querySelector('.name')?.textContent") == name
    page.focus("#top label[data-key=theme] select")
    page.keyboard.press("ArrowDown")
    settled(page)
    assert "theme=light" in page.url
    assert page.evaluate("document.activeElement.matches('#top label[data-key=theme] select')")


def test_the_theme_is_in_the_address_and_outlives_a_reload(page: Page, studio: Studio) -> None:
    look(page, studio.at())
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = {}
    for theme in ("light", "dark"):
        page.select_option("#top label[data-key=theme] select", theme)
        settled(page)
        colours[theme] = page.evaluate(paper)
        page.reload()
        page.wait_for_selector("body[data-ready=true]")
        assert page.evaluate(paper) == colours[theme]
        assert page.input_value("#top label[data-key=theme] select") == theme
    assert colours["light"] != colours["dark"]


def test_a_link_brings_its_theme_along(page: Page, studio: Studio) -> None:
    """With all that is drawn in its colours: the numbers beside the wall are ink on a canvas."""
    seen = []
    for theme in ("light", "dark"):
        look(page, studio.at(part="attention", picture="sample-1", theme=theme))
        settled(page)
        seen.append(page.eval_on_selector(".wall canvas", "(canvas) => canvas.toDataURL()"))
        page.goto("about:blank")
    assert seen[0] != seen[1]
    look(page, studio.at(part="attention", picture="sample-1", theme="light"))
    settled(page)
    paste(page, page.url.replace("theme=light", "theme=dark"))
    settled(page)
    assert page.input_value("#top label[data-key=theme] select") == "dark"
    assert page.eval_on_selector(".wall canvas", "(canvas) => canvas.toDataURL()") == seen[1]


def test_on_a_phone_the_page_stays_where_it_is_read(browser: Browser, studio: Studio) -> None:
    width, height = SIZES["phone"]
    page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
    page.set_default_timeout(LONG)
    with Watched(page):
        look(page, studio.at(part="lens", picture="sample-1"))
        settled(page)
        place = page.locator("#story [aria-current]").bounding_box()
        assert place is not None
        assert place["x"] > 60, "one sees what comes before"
        assert place["x"] + place["width"] < width - 60, "and what comes next"
        page.evaluate("scrollTo(0, 500)")
        paste(page, page.url + "&step=6")
        settled(page)
        assert page.evaluate("scrollY") == 500
    page.close()


def test_a_model_of_fourteen_by_fourteen_patches_shows_its_wall(page: Page, zoo: tuple[Studio, list[Path]]) -> None:
    studio, paths = zoo
    look(page, studio.at(part="picture", model=f"m{len(paths)}", picture="sample-1"))
    settled(page)
    page.click(".shelf button[data-picture=sample-3]")
    visit(page, "attention")
    settled(page)
    assert "sample-3" in page.url
    assert page.inner_text(".attention .who").startswith("Layer 11, head 0")
    colours = """(canvas) => {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    }"""
    assert page.eval_on_selector(".wall canvas", colours) > 100  # 36 maps of 196 patches in shades of their own
