"""A link reproduces the view, and every figure can be downloaded: as an image, as numbers, as Python."""

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.browser.opening import (
    LONG,
    MOMENT,
    PARTS,
    REFUSED,
    SIZES,
    WATCHED,
    Studio,
    Watched,
    look,
    paste,
    said,
    same,
    seen,
    settled,
    visit,
)

pytestmark = pytest.mark.browser
Views = dict[str, tuple[str, dict[str, Any]]]  # by part: a link and its view


def _picture(page: Page) -> None:
    page.select_option(".chooser label:has-text('Dataset') select", "samples")
    settled(page)
    page.click(".thumbnails button[data-image=sample-2]")


def _patches(page: Page) -> None:
    page.click("figure[data-figure=patches] .patch-grid", position={"x": 150, "y": 20})
    page.select_option(".one-patch select", "normal")


def _tokens(page: Page) -> None:
    page.focus("figure[data-figure=token-norms] input[type=range]")
    page.keyboard.press("ArrowRight")
    page.select_option("figure[data-figure=token-norms] label:has-text('Colour scale') select", "all")


def _attention(page: Page) -> None:
    page.click(".attention-grid", position={"x": 60, "y": 60})
    page.select_option("label:has-text('Colour scale') select >> visible=true", "all")
    page.click("figure[data-figure=attention-head] .patch-grid", position={"x": 30, "y": 60})


def _flow(page: Page) -> None:
    page.click(".methods button:has-text('Relevance') >> nth=-1")
    page.locator("label:has-text('Class to explain') select").select_option(index=2)


def _lens(page: Page) -> None:
    page.click("table.lens button[data-at='1']")


def _prediction(page: Page) -> None:
    page.click("button[data-mode=drop]")
    page.click("text=Random third")


def _inside(page: Page) -> None:
    page.locator("label:has-text('Compare with') select").select_option(index=2)
    page.select_option("label:has-text('Weights') select", "renormalised")


def _shapes(page: Page) -> None:
    page.fill(".architecture label:has-text('Depth') input", "5")
    page.click(".architecture .stages button[data-stage=blocks]")


def _run(page: Page) -> None:
    page.locator(".confusion td:not(.none)").nth(1).click()


CHOICES: dict[str, Callable[[Page], None]] = {
    "image": _picture, "patches": _patches, "tokens": _tokens, "attention": _attention, "saliency": _flow, "lens": _lens,
    "prediction": _prediction, "model": _inside, "architecture": _shapes, "run": _run,
}  # fmt: skip


def _new(browser: Browser) -> Page:
    width, height = SIZES["laptop"]
    made = browser.new_page(viewport={"width": width, "height": height}, accept_downloads=True, reduced_motion="reduce")
    made.set_default_timeout(LONG)
    return made


@pytest.fixture(scope="module")
def views(browser: Browser, studio: Studio) -> Iterator[Views]:
    """Change something in every part; each change stays while the next is made."""
    page, found = _new(browser), {}
    with Watched(page):
        look(page, studio.at())
        page.focus("#top input[type=range]")
        page.keyboard.press("ArrowLeft")
        for part, choose in CHOICES.items():
            visit(page, part)
            before = page.url
            choose(page)
            view = seen(page)
            assert page.url != before, f"the change in {part} is not in the URL"
            found[part] = page.url, view
        yield found
    page.close()


def test_a_link_reproduces_the_view_in_a_new_page(browser: Browser, views: Views) -> None:
    found = {}
    for part, (url, view) in views.items():
        page = _new(browser)
        with Watched(page):
            look(page, url)
            found[part] = same(view, seen(page))
        page.close()
    assert not {part: what for part, what in found.items() if what}


def test_a_link_pasted_into_an_open_page_changes_the_view(page: Page, studio: Studio, views: Views) -> None:
    look(page, studio.at(part="lens"))
    found = {}
    for part, (url, view) in reversed(views.items()):
        paste(page, url)
        found[part] = same(view, seen(page))
    assert not {part: what for part, what in found.items() if what}
    assert sum("main.js" in address for address in WATCHED[page].addresses) == 1, "the page was reloaded"


CHOOSE_AND_PASTE = """(hash) => {
  const colours = document.querySelector("#top [data-key=theme] select");
  colours.value = "dark";
  colours.dispatchEvent(new Event("change")); // the URL follows a little later
  location.hash = hash;
}"""


def test_a_link_pasted_before_a_change_is_written_is_not_lost(page: Page, studio: Studio) -> None:
    """A busy browser fires the event of the link only after the change was due to be written: here, never."""
    page.add_init_script("addEventListener('hashchange', (event) => event.stopImmediatePropagation())")
    look(page, studio.at(part="lens"))
    settled(page)
    page.evaluate(CHOOSE_AND_PASTE, urlencode({"part": "tokens", "model": "m0", "image": "d0-test-1"}))
    settled(page)
    assert page.title().startswith("Tokens")
    assert "part=tokens" in page.url


def test_back_leaves_a_link_that_has_no_image(page: Page, studio: Studio) -> None:
    """The defaults that the page adds are no history entry, to which Back would return for ever."""
    look(page, studio.at(part="lens", image="sample-1"))
    settled(page)
    paste(page, studio.at(part="tokens"))
    settled(page)
    assert "image=d0-test-0" in page.url
    page.go_back()
    settled(page)
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


def _sentence(words: str) -> bool:
    strange = ("undefined", "null", "object Object", "Error:", "Traceback", "\n")
    return 10 < len(words) < 250 and not any(one in words for one in strange)


def _strange(page: Page) -> list[str]:
    """Return the problems of the page: it must show something sensible, or one error message."""
    words, found = said(page), []
    if words and not _sentence(words):
        found.append(f"says {words!r}")
    if page.locator("#panel h1 >> visible=true").count() != 1:
        found.append("shows not one part")
    text = page.inner_text("#content")
    return found + [f"shows {one}: {text}" for one in ("undefined", "NaN", "Infinity", "[object") if one in text]


def test_nonsense_in_the_url_never_breaks_the_page(page: Page, studio: Studio) -> None:
    """Neither in a new page nor in an open one; and a valid link repairs it."""
    WATCHED[page].expected = (REFUSED,)
    wrong = {}
    for state in NONSENSE:
        page.goto("about:blank")
        look(page, studio.at(**state))
        settled(page, MOMENT)
        wrong[f"new: {urlencode(state)}"] = _strange(page)
    for state in reversed(NONSENSE):
        paste(page, studio.at(**state))
        wrong[f"open: {urlencode(state)}"] = _strange(page)
    paste(page, studio.at(part="attention", model="m0", image="d0-test-1"))
    assert page.locator(".attention-grid canvas >> visible=true").count() == 1
    assert page.inner_text(".attention .head-title").startswith("Layer 1, head 0")
    assert said(page) == "", "an outdated error message"
    assert not {state: what for state, what in wrong.items() if what}


def _figures(page: Page) -> list[str]:
    return page.eval_on_selector_all(
        "#panel figure", "(all) => all.filter((one) => one.checkVisibility()).map((one) => one.dataset.figure)"
    )


def _taken(page: Page, name: str, kind: str) -> bytes:
    with page.expect_download() as waiting:
        page.click(f"figure[data-figure={name}] .tools button:text-is('{kind}') >> visible=true")
    assert waiting.value.suggested_filename == f"{name}.{kind.lower()}"
    return Path(waiting.value.path()).read_bytes()


def test_every_figure_can_be_downloaded(page: Page, studio: Studio) -> None:
    look(page, studio.at())
    wrong, count = [], 0
    for part in PARTS:
        visit(page, part)
        names = _figures(page)
        assert len(names) == len(set(names)) > 0, part
        for name in names:
            count += 1
            tools = page.locator(f"figure[data-figure={name}] .tools button").all_inner_texts()
            if not {"PNG", "SVG", "JSON", "Python"} <= set(tools):
                wrong.append(f"{name} offers {tools}")
            elif name == names[0]:  # all of them would take a minute
                wrong += [f"{name}: {problem}" for problem in _problems(page, name)]
    assert not wrong
    assert count > 20


def _problems(page: Page, name: str) -> Iterator[str]:
    picture = Image.open(BytesIO(_taken(page, name, "PNG")))
    if picture.format != "PNG" or picture.convert("RGB").getcolors(1) is not None:
        yield "its PNG has only one colour"
    drawing = ElementTree.fromstring(_taken(page, name, "SVG"))
    if not drawing.tag.endswith("svg") or len(drawing) < 2:
        yield "its SVG is empty"
    for one in drawing.iter():
        for key, value in one.attrib.items():
            if key.endswith("href") and not value.startswith(("data:", "#")):
                yield f"its SVG refers to {value[:60]}"
            if "url(" in value and "url(#" not in value and 'url("#' not in value:
                yield f"its SVG refers to {value[:60]}"
    numbers = json.loads(_taken(page, name, "JSON"))
    if numbers in (None, {}, []):
        yield "its JSON is empty"


def test_the_python_of_every_figure_runs_as_it_stands(page: Page, studio: Studio) -> None:
    look(page, studio.at(query=3, patches="1-3,5", mode="drop"))
    snippets = {}
    for part in PARTS:
        visit(page, part)
        for name in _figures(page):
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
