"""A link reproduces the view, and every figure can be downloaded: as an image, as numbers, as Python."""

import json
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.browser.studio_page import (
    ERROR_RESPONSE,
    MOMENT_MS,
    PARTS,
    TIMEOUT_MS,
    VIEWPORTS,
    WATCHED_PAGES,
    RunningStudio,
    WatchedPage,
    capture_view,
    open_page,
    open_part,
    paste_link,
    status_message,
    view_differences,
    wait_until_idle,
)

pytestmark = pytest.mark.browser
Views = dict[str, tuple[str, dict[str, Any]]]  # by part: a link and its view


def _change_image(page: Page) -> None:
    page.select_option(".chooser label:has-text('Dataset') select", "samples")
    wait_until_idle(page)
    page.click(".thumbnails button[data-image=sample-2]")


def _change_patches(page: Page) -> None:
    page.click("figure[data-figure=patches] .patch-grid", position={"x": 150, "y": 20})
    page.select_option(".one-patch select", "normal")


def _change_tokens(page: Page) -> None:
    page.focus("figure[data-figure=token-norms] input[type=range]")
    page.keyboard.press("ArrowRight")
    page.select_option("figure[data-figure=token-norms] label:has-text('Colour scale') select", "all")


def _change_attention(page: Page) -> None:
    page.click(".attention-grid", position={"x": 60, "y": 60})
    page.select_option("label:has-text('Colour scale') select >> visible=true", "all")
    page.click("figure[data-figure=attention-head] .patch-grid", position={"x": 30, "y": 60})


def _change_saliency(page: Page) -> None:
    page.click(".methods button:has-text('Relevance') >> nth=-1")
    page.locator("label:has-text('Class to explain') select").select_option(index=2)


def _change_lens(page: Page) -> None:
    page.click("table.lens button[data-at='1']")


def _change_prediction(page: Page) -> None:
    page.click("button[data-mode=drop]")
    page.click("text=Random third")


def _change_model(page: Page) -> None:
    page.locator("label:has-text('Compare with') select").select_option(index=2)
    page.select_option("label:has-text('Weights') select", "renormalised")


def _change_architecture(page: Page) -> None:
    page.fill(".architecture label:has-text('Depth') input", "5")
    page.click(".architecture .stages button[data-stage=blocks]")


def _change_run(page: Page) -> None:
    page.locator(".confusion td:not(.none)").nth(1).click()


CHANGES: dict[str, Callable[[Page], None]] = {
    "image": _change_image,
    "patches": _change_patches,
    "tokens": _change_tokens,
    "attention": _change_attention,
    "saliency": _change_saliency,
    "lens": _change_lens,
    "prediction": _change_prediction,
    "model": _change_model,
    "architecture": _change_architecture,
    "run": _change_run,
}


def _new_page(browser: Browser) -> Page:
    width, height = VIEWPORTS["laptop"]
    page = browser.new_page(viewport={"width": width, "height": height}, accept_downloads=True, reduced_motion="reduce")
    page.set_default_timeout(TIMEOUT_MS)
    return page


def change_parts(page: Page, studio: RunningStudio, parts: Iterable[str]) -> Views:
    """Change something in every part; each change stays while the next is made."""
    views_by_part = {}
    open_page(page, studio.link())
    page.focus("#top input[type=range]")
    page.keyboard.press("ArrowLeft")
    for part in parts:
        open_part(page, part)
        before = page.url
        CHANGES[part](page)
        view = capture_view(page)
        assert page.url != before, f"the change in {part} is not in the URL"
        views_by_part[part] = page.url, view
    return views_by_part


@pytest.fixture(scope="module")
def views(browser: Browser, studio: RunningStudio) -> Iterator[Views]:
    page = _new_page(browser)
    with WatchedPage(page):
        yield change_parts(page, studio, CHANGES)
    page.close()


def link_problems(browser: Browser, views: Views) -> dict[str, list[str]]:
    """Open every link in a new page and return the differences from its view."""
    problems = {}
    for part, (url, view) in views.items():
        page = _new_page(browser)
        with WatchedPage(page):
            open_page(page, url)
            problems[part] = view_differences(view, capture_view(page))
        page.close()
    return {part: what for part, what in problems.items() if what}


def test_a_link_reproduces_the_view_in_a_new_page(browser: Browser, page: Page, studio: RunningStudio) -> None:
    assert not link_problems(browser, change_parts(page, studio, ("attention", "prediction", "architecture")))


@pytest.mark.thorough
def test_a_link_reproduces_the_view_of_every_part(browser: Browser, views: Views) -> None:
    assert not link_problems(browser, views)


@pytest.mark.thorough
def test_a_link_pasted_into_an_open_page_changes_the_view(page: Page, studio: RunningStudio, views: Views) -> None:
    open_page(page, studio.link(part="lens"))
    problems = {}
    for part, (url, view) in reversed(views.items()):
        paste_link(page, url)
        problems[part] = view_differences(view, capture_view(page))
    assert not {part: what for part, what in problems.items() if what}
    assert sum("main.js" in address for address in WATCHED_PAGES[page].requested_urls) == 1, "the page was reloaded"


CHANGE_AND_PASTE = """(hash) => {
  const colours = document.querySelector("#top [data-key=theme] select");
  colours.value = "dark";
  colours.dispatchEvent(new Event("change")); // the URL follows a little later
  location.hash = hash;
}"""


@pytest.mark.thorough
def test_a_link_pasted_before_a_change_is_written_is_not_lost(page: Page, studio: RunningStudio) -> None:
    """A busy browser fires the event of the link only after the change was due to be written: here, never."""
    page.add_init_script("addEventListener('hashchange', (event) => event.stopImmediatePropagation())")
    open_page(page, studio.link(part="lens"))
    wait_until_idle(page)
    page.evaluate(CHANGE_AND_PASTE, urlencode({"part": "tokens", "model": "m0", "image": "d0-test-1"}))
    wait_until_idle(page)
    assert page.title().startswith("Tokens")
    assert "part=tokens" in page.url


@pytest.mark.thorough
def test_back_leaves_a_link_that_has_no_image(page: Page, studio: RunningStudio) -> None:
    """The defaults that the page adds are no history entry, to which Back would return for ever."""
    open_page(page, studio.link(part="lens", image="sample-1"))
    wait_until_idle(page)
    paste_link(page, studio.link(part="tokens"))
    wait_until_idle(page)
    assert "image=d0-test-0" in page.url
    page.go_back()
    wait_until_idle(page)
    assert page.title().startswith("Logit lens")
    assert "image=sample-1" in page.url


NONSENSE: list[dict[str, Any]] = [
    {"model": "m9"},
    {"image": "../../etc/passwd"},
    {"image": "d0-test-99999999"},
    {"image": "upload-0123456789abcdef"},
    {"query": 99999, "part": "attention", "layer": -5, "head": 7.5, "key": "x", "scale": "none"},
    {"query": -1, "part": "tokens", "tokens_layer": 77},
    {"query": 1.5, "part": "patches"},
    {"part": "nothing"},
    {"step": "abc"},
    {"step": 5, "part": "model", "compare": "m7", "compare_step": "x"},
    {"class": "NaN", "part": "lens", "lens_layer": -2},
    {"class": 10, "part": "saliency", "method": "no such"},
    {"part": "prediction", "patches": "3-1,9999-5,x,-", "mode": "burn", "seed": "e"},
    {"part": "architecture", "arch_image": "0", "arch_name": "Q/0", "arch_cost": "love", "arch_stage": "x"},
    {"part": "run", "cell": "99-99"},
    {"part": "image", "dataset": "../", "split": "x", "start": "-7"},
    {"part": "image", "dataset": "d0", "split": "test", "start": "1e9"},
    {"theme": "<b>", "part": "<script>"},
]


def _is_sentence(text: str) -> bool:
    strange = ("undefined", "null", "object Object", "Error:", "Traceback", "\n")
    return 10 < len(text) < 250 and not any(one in text for one in strange)


def _page_problems(page: Page) -> list[str]:
    """Return the problems of the page: it must show something sensible, or one error message."""
    message, problems = status_message(page), []
    if message and not _is_sentence(message):
        problems.append(f"says {message!r}")
    if page.locator("#panel h1 >> visible=true").count() != 1:
        problems.append("shows not one part")
    text = page.inner_text("#content")
    return problems + [f"shows {one}: {text}" for one in ("undefined", "NaN", "Infinity", "[object") if one in text]


@pytest.mark.thorough
def test_nonsense_in_the_url_never_breaks_the_page(page: Page, studio: RunningStudio) -> None:
    """Neither in a new page nor in an open one; and a valid link repairs it."""
    WATCHED_PAGES[page].expected_errors = (ERROR_RESPONSE,)
    wrong = {}
    for state in NONSENSE:
        page.goto("about:blank")
        open_page(page, studio.link(**state))
        wait_until_idle(page, MOMENT_MS)
        wrong[f"new: {urlencode(state)}"] = _page_problems(page)
    for state in reversed(NONSENSE):
        paste_link(page, studio.link(**state))
        wrong[f"open: {urlencode(state)}"] = _page_problems(page)
    paste_link(page, studio.link(part="attention", model="m0", image="d0-test-1"))
    assert page.locator(".attention-grid canvas >> visible=true").count() == 1
    assert page.inner_text(".attention .head-title").startswith("Layer 1, head 0")
    assert status_message(page) == "", "an outdated error message"
    assert not {state: what for state, what in wrong.items() if what}


def _figure_names(page: Page) -> list[str]:
    return page.eval_on_selector_all(
        "#panel figure", "(all) => all.filter((one) => one.checkVisibility()).map((one) => one.dataset.figure)"
    )


def _download_figure(page: Page, name: str, kind: str) -> bytes:
    with page.expect_download() as waiting:
        page.click(f"figure[data-figure={name}] .tools button:text-is('{kind}') >> visible=true")
    assert waiting.value.suggested_filename == f"{name}.{kind.lower()}"
    return Path(waiting.value.path()).read_bytes()


@pytest.mark.thorough
def test_every_figure_can_be_downloaded(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link())
    wrong, count = [], 0
    for part in PARTS:
        open_part(page, part)
        names = _figure_names(page)
        assert len(names) == len(set(names)) > 0, part
        for name in names:
            count += 1
            tools = page.locator(f"figure[data-figure={name}] .tools button").all_inner_texts()
            if not {"PNG", "SVG", "JSON", "Python"} <= set(tools):
                wrong.append(f"{name} offers {tools}")
            elif name == names[0]:  # all of them would take a minute
                wrong += [f"{name}: {problem}" for problem in _download_problems(page, name)]
    assert not wrong
    assert count > 20


def _download_problems(page: Page, name: str) -> Iterator[str]:
    image = Image.open(BytesIO(_download_figure(page, name, "PNG")))
    if image.format != "PNG" or image.convert("RGB").getcolors(1) is not None:
        yield "its PNG has only one colour"
    drawing = ElementTree.fromstring(_download_figure(page, name, "SVG"))
    if not drawing.tag.endswith("svg") or len(drawing) < 2:
        yield "its SVG is empty"
    for one in drawing.iter():
        for key, value in one.attrib.items():
            if key.endswith("href") and not value.startswith(("data:", "#")):
                yield f"its SVG refers to {value[:60]}"
            if "url(" in value and "url(#" not in value and 'url("#' not in value:
                yield f"its SVG refers to {value[:60]}"
    numbers = json.loads(_download_figure(page, name, "JSON"))
    if numbers in (None, {}, []):
        yield "its JSON is empty"


@pytest.mark.thorough
def test_the_python_of_every_figure_runs_as_it_stands(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link(query=3, patches="1-3,5", mode="drop"))
    snippets = {}
    for part in PARTS:
        open_part(page, part)
        for name in _figure_names(page):
            page.click(f"figure[data-figure={name}] .tools button:text-is('Python') >> visible=true")
            snippets[name] = page.inner_text(f"figure[data-figure={name}] pre.python")
    wrong = {}
    for source, name in {source: name for name, source in snippets.items()}.items():  # two figures may have the same
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__"})
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}\n{source}"
    assert not wrong, "\n\n".join(f"{name}: {what}" for name, what in wrong.items())
    assert len(snippets) > 20
