"""A standalone page shows what the studio showed."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.studio_page import (
    PARTS,
    TIMEOUT_MS,
    VIEWPORTS,
    RunningStudio,
    WatchedPage,
    capture_view,
    open_page,
    open_part,
    status_message,
    wait_until_idle,
)
from tests.tiers import quick_first

pytestmark = pytest.mark.browser

SAVED_FIGURES = {  # figures of each part that a saved page shows like the studio
    "patches": ("patches", "patch", "embedding"),
    "tokens": ("position-norms", "token-norms", "token-norms-over-depth"),
    "attention": ("attention-grid", "attention-head"),
    "saliency": ("saliency-map", "faithfulness-curves", "faithfulness-table"),
    "lens": ("lens-depth", "lens-layer", "lens-table"),
    "model": ("position-similarity", "filters", "attention-distance", "attention-entropy", "head-similarity"),
    "architecture": ("architecture", "cost"),
}
FIGURES_SCRIPT = """(names) => names.map((name) => {
  const place = [...document.querySelectorAll(`figure[data-figure=${name}]`)].find((one) => one.checkVisibility());
  const shown = (what) => [...place.querySelectorAll(what)].filter((one) => one.checkVisibility());
  return [name, place.querySelector(".drawing").innerText, shown("canvas").map((one) => one.toDataURL()),
    shown("path, circle, rect").map((one) => one.outerHTML)];
})"""


def differences(one: list[Any], other: list[Any]) -> list[str]:
    """Return the differences between the same figures of two pages."""
    problems = []
    for (name, *mine), (_, *theirs) in zip(one, other, strict=True):
        for what, first, second in zip(("text", "canvases", "lines"), mine, theirs, strict=True):
            if first != second:
                problems.append(f"{name}: different {what} {[first, second] if what == 'text' else [len(first), len(second)]}")
    return problems


@pytest.mark.parametrize("parts", quick_first([["attention", "saliency"], [*SAVED_FIGURES]]), ids=["two parts", "all parts"])
def test_a_saved_page_shows_the_same_without_the_studio(
    browser: Browser, page: Page, studio: RunningStudio, tmp_path: Path, parts: list[str]
) -> None:
    open_page(page, studio.link(query=4, step=6))
    samples = {}
    for part in parts:
        open_part(page, part)
        capture_view(page)  # no token is active
        samples[part] = page.evaluate(FIGURES_SCRIPT, SAVED_FIGURES[part])
    with page.expect_download() as waiting:
        page.click("text=Save this page")
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)
    assert file.suffix == ".html"
    assert "Saved" in status_message(page)
    assert studio.url.split("/")[3] not in file.read_text(), "the token of the studio must not be in the file"

    width, height = VIEWPORTS["laptop"]
    context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
    copy = context.new_page()
    copy.set_default_timeout(TIMEOUT_MS)
    with WatchedPage(copy) as watched:
        open_page(copy, file.as_uri())
        wrong = []
        for part in PARTS:
            open_part(copy, part)
            assert status_message(copy) == "", part
            assert copy.locator("#panel h1 >> visible=true").count() == 1
            if part in parts:
                capture_view(copy)
                wrong += differences(samples[part], copy.evaluate(FIGURES_SCRIPT, SAVED_FIGURES[part]))
        assert not wrong
        open_part(copy, "attention")
        wall = "document.querySelector('.attention-grid canvas').toDataURL()"
        before = copy.evaluate(wall)
        copy.hover("#side .patch-grid", position={"x": 9, "y": 9})
        copy.wait_for_function(f"(before) => {wall} !== before", arg=before)
        assert copy.inner_text("#side .token-info") == "patch 0 (row 0, column 0)"
        wait_until_idle(copy)
        assert not [url for url in watched.requested_urls if not url.startswith(("data:", "blob:", file.as_uri()))]
    context.close()
