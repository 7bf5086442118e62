"""A link reproduces the view, and every figure can be taken away: as a picture, as numbers, as Python."""

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
Views = dict[str, tuple[str, dict[str, Any]]]  # of each part a link and what is seen behind it


def _picture(page: Page) -> None:
    page.select_option(".chooser label:has-text('From') select", "samples")
    settled(page)
    page.click(".shelf button[data-picture=sample-2]")


def _patches(page: Page) -> None:
    page.click("figure[data-figure=patches] .patchgrid", position={"x": 150, "y": 20})
    page.select_option(".onepatch select", "normal")


def _tokens(page: Page) -> None:
    page.focus("figure[data-figure=lengths] input[type=range]")
    page.keyboard.press("ArrowRight")
    page.select_option("figure[data-figure=lengths] label:has-text('Shades') select", "all")


def _attention(page: Page) -> None:
    page.click(".wall", position={"x": 60, "y": 60})
    page.select_option("label:has-text('Shades') select >> visible=true", "all")
    page.click("figure[data-figure=attention-head] .patchgrid", position={"x": 30, "y": 60})


def _flow(page: Page) -> None:
    page.click(".methods button:has-text('Relevance') >> nth=-1")
    page.locator("label:has-text('Class to explain') select").select_option(index=2)


def _lens(page: Page) -> None:
    page.click("table.lens button[data-at='1']")


def _prediction(page: Page) -> None:
    page.click("button[data-how=drop]")
    page.click("text=A random third")


def _inside(page: Page) -> None:
    page.locator("label:has-text('Beside it') select").select_option(index=2)
    page.select_option("label:has-text('Counted') select", "whole")


def _shapes(page: Page) -> None:
    page.fill(".shapes label:has-text('Depth') input", "5")
    page.click(".shapes .stages button[data-stage=blocks]")


def _run(page: Page) -> None:
    page.locator(".confusion td:not(.none)").nth(1).click()


CHOICES: dict[str, Callable[[Page], None]] = {
    "picture": _picture, "patches": _patches, "tokens": _tokens, "attention": _attention, "flow": _flow, "lens": _lens,
    "prediction": _prediction, "inside": _inside, "shapes": _shapes, "run": _run,
}  # fmt: skip


def _new(browser: Browser) -> Page:
    width, height = SIZES["laptop"]
    made = browser.new_page(viewport={"width": width, "height": height}, accept_downloads=True, reduced_motion="reduce")
    made.set_default_timeout(LONG)
    return made


@pytest.fixture(scope="module")
def views(browser: Browser, studio: Studio) -> Iterator[Views]:
    """In every part something is chosen; each choice stays while the next is made."""
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
            assert page.url != before, f"what is chosen in {part} is not in the address"
            found[part] = page.url, view
        yield found
    page.close()


def test_a_link_reproduces_the_view_for_somebody_else(browser: Browser, views: Views) -> None:
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
    assert sum("main.js" in address for address in WATCHED[page].addresses) == 1, "the page was loaded anew"


CHOOSE_AND_PASTE = """(hash) => {
  const colours = document.querySelector("#top [data-key=theme] select");
  colours.value = "dark";
  colours.dispatchEvent(new Event("change")); // the address follows a little later
  location.hash = hash;
}"""


def test_a_link_pasted_while_a_choice_is_still_to_be_written_is_not_lost(page: Page, studio: Studio) -> None:
    """A busy browser tells of the link only after the choice was due to be written: here, never."""
    page.add_init_script("addEventListener('hashchange', (event) => event.stopImmediatePropagation())")
    look(page, studio.at(part="lens"))
    settled(page)
    page.evaluate(CHOOSE_AND_PASTE, urlencode({"part": "tokens", "model": "m0", "picture": "d0-test-1"}))
    settled(page)
    assert page.title().startswith("Tokens")
    assert "part=tokens" in page.url


def test_back_leads_out_of_a_link_that_names_no_picture(page: Page, studio: Studio) -> None:
    """What the page adds to it is no step of its own, to which Back would return for ever."""
    look(page, studio.at(part="lens", picture="sample-1"))
    settled(page)
    paste(page, studio.at(part="tokens"))
    settled(page)
    assert "picture=d0-test-0" in page.url
    page.go_back()
    settled(page)
    assert page.title().startswith("Lens")
    assert "picture=sample-1" in page.url


NONSENSE: list[dict[str, Any]] = [
    {"model": "m9"},
    {"picture": "../../etc/passwd"},
    {"picture": "d0-test-99999999"},
    {"picture": "upload-0123456789abcdef"},
    {"query": 99999, "part": "attention", "layer": -5, "head": 7.5, "key": "x", "scale": "none"},
    {"query": -1, "part": "tokens", "tokens_layer": 77},
    {"query": 1.5, "part": "patches"},
    {"part": "nothing"},
    {"step": "abc"},
    {"step": 5, "part": "inside", "beside": "m7", "beside_step": "x"},
    {"class": "NaN", "part": "lens", "lens_layer": -2},
    {"class": 10, "part": "flow", "method": "no such"},
    {"part": "prediction", "patches": "3-1,9999-5,x,-", "how": "burn", "seed": "e"},
    {"part": "shapes", "s_image": "0", "s_name": "Q/0", "s_by": "love", "s_stage": "x"},
    {"part": "run", "cell": "99-99"},
    {"part": "picture", "album": "../", "split": "x", "from": "-7"},
    {"part": "picture", "album": "d0", "split": "test", "from": "1e9"},
    {"theme": "<b>", "part": "<script>"},
]


def _sentence(words: str) -> bool:
    strange = ("undefined", "null", "object Object", "Error:", "Traceback", "\n")
    return 10 < len(words) < 250 and not any(one in words for one in strange)


def _strange(page: Page) -> list[str]:
    """What is wrong with the page in view: it must show something sensible, or say one sentence."""
    words, found = said(page), []
    if words and not _sentence(words):
        found.append(f"says {words!r}")
    if page.locator("#panel h1 >> visible=true").count() != 1:
        found.append("shows not one part")
    text = page.inner_text("#stage")
    return found + [f"shows {one}: {text}" for one in ("undefined", "NaN", "Infinity", "[object") if one in text]


def test_nonsense_in_the_address_never_breaks_the_page(page: Page, studio: Studio) -> None:
    """Neither in a new page nor in one that is open; and a sound link mends it."""
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
    paste(page, studio.at(part="attention", model="m0", picture="d0-test-1"))
    assert page.locator(".wall canvas >> visible=true").count() == 1
    assert page.inner_text(".attention .who").startswith("Layer 1, head 0")
    assert said(page) == "", "a sentence about what is no longer so"
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


def test_every_figure_can_be_taken_away(page: Page, studio: Studio) -> None:
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
        yield "its PNG is of one colour"
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
    look(page, studio.at(query=3, patches="1-3,5", how="drop"))
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
