"""What people do to a page: files that are no pictures, unusual models, two tabs, a studio that stops, very many pictures."""

import base64
import json
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect

import vitrail
from tests.browser.opening import (
    LONG,
    MOMENT,
    PARTS,
    REFUSED,
    WATCHED,
    Studio,
    Watched,
    look,
    opened,
    paste,
    said,
    settled,
    visit,
)
from tests.browser.runs import MODELS, saved
from vitrail.studio.desk import ROOM
from vitrail.studio.samples import Samples
from vitrail.studio.uploads import UPLOADS

pytestmark = pytest.mark.browser
TOKEN = "the-same-token-for-both-studios"


def png(size: tuple[int, int], colour: Any = "teal", mode: str = "RGB", **options: Any) -> bytes:
    stream = BytesIO()
    Image.new(mode, size, colour).save(stream, options.pop("format", "PNG"), **options)
    return stream.getvalue()


def turned() -> bytes:
    """A camera's picture that was taken upright: stored 30 wide and 20 high, its left half red, to be turned by 90 degrees."""
    picture = Image.new("RGB", (30, 20), "blue")
    picture.paste("red", (0, 0, 15, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = BytesIO()
    picture.save(stream, "PNG", exif=exif)
    return stream.getvalue()


def upload(page: Page, name: str, content: bytes) -> None:
    page.set_input_files("input[type=file]", {"name": name, "mimeType": "image/png", "buffer": content})
    settled(page)


REFUSALS = {
    "words.png": b"these are words and no picture, whatever the name says\n" * 40,
    "empty.png": b"",
    "half.png": png((400, 300), "teal")[:120],
    "page.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "huge.png": png((10_000, 10_000), 1, "L", compress_level=1),
}


def test_what_is_no_picture_is_refused_in_one_sentence(page: Page, studio: Studio) -> None:
    WATCHED[page].expected = (REFUSED,)
    look(page, studio.at(part="picture"))
    before = page.url
    for name, content in REFUSALS.items():
        upload(page, name, content)
        words = said(page)
        assert name in words
        assert 20 < len(words) < 200
        assert "\n" not in words
        assert page.url == before, "the picture that was shown stays"
    page.click(".shelf button >> nth=3")
    settled(page)
    assert said(page) == ""
    assert page.url != before


TOP_AND_BOTTOM = """() => {
  const canvas = document.querySelector("#side canvas"), { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(width >> 1, 0, 1, height);
  return [data[0], data[4 * (height - 1)]];
}"""


def test_pictures_of_any_size_and_turn_are_shown(page: Page, studio: Studio) -> None:
    look(page, studio.at(part="picture"))
    found = {
        "one.png": (png((1, 1)), "1 × 1 pixels"),
        "long.png": (png((900, 2)), "900 × 2 pixels"),
        "turned.png": (turned(), "20 × 30 pixels"),  # width and height as one sees it
        "clear.png": (png((40, 30), (255, 0, 0, 0), "RGBA"), "40 × 30 pixels"),
        "deep.png": (png((31, 30), 40_000, "I;16"), "31 × 30 pixels"),
        "a <b>'\"&%00\n.gif": (png((33, 22), 3, "P", format="GIF"), "33 × 22 pixels"),
    }
    for name, (content, words) in found.items():
        upload(page, name, content)
        assert said(page) == "", name
        assert "picture=upload-" in page.url
        assert words in page.inner_text("figure[data-figure=preprocessing]"), name
    upload(page, "turned.png", found["turned.png"][0])
    pixels = page.evaluate(TOP_AND_BOTTOM)
    assert pixels[0] > pixels[1], "red, which is lighter, is at the top once the picture is upright"
    for part in PARTS:
        visit(page, part)
    assert said(page) == ""


HAND_IN = """([kind, name, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)), carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type: "image/png" }));
  const happened = kind === "drop" ? new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true })
    : new ClipboardEvent("paste", { clipboardData: carried, bubbles: true, cancelable: true });
  document.body.dispatchEvent(happened);
  return happened.defaultPrevented;
}"""


def test_what_was_chosen_while_a_picture_was_on_its_way_stays(page: Page, studio: Studio) -> None:
    look(page, studio.at(part="picture", picture="sample-1"))
    held: list[Route] = []
    page.route("**/api/upload?name=slow.png", lambda route: held.append(route))
    with page.expect_request("**/api/upload?name=slow.png"):
        page.set_input_files("input[type=file]", {"name": "slow.png", "mimeType": "image/png", "buffer": turned()})
    page.click(".shelf button[data-picture=sample-3]")
    held[0].continue_()
    expect(page.locator("#said")).to_have_text("slow.png is now among the uploaded pictures.")
    settled(page)
    assert "picture=sample-3" in page.url


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_picture_may_be_dropped_and_pasted_in_any_part(page: Page, studio: Studio, kind: str) -> None:
    WATCHED[page].expected = (REFUSED,)
    look(page, studio.at(part="attention"))
    content = png((20 + len(kind), 31), "orange")
    assert page.evaluate(HAND_IN, [kind, f"{kind}.png", base64.b64encode(content).decode()])
    settled(page)
    assert "picture=upload-" in page.url
    assert page.inner_text("#side .title") == f"{kind}.png"
    before = page.url
    page.evaluate(HAND_IN, [kind, "words.png", base64.b64encode(b"no picture").decode()])
    settled(page)
    assert "words.png" in said(page)
    assert page.url == before


@pytest.mark.parametrize("number", range(len(MODELS)), ids=list(MODELS))
def test_every_part_shows_every_kind_of_model(page: Page, zoo: tuple[Studio, list[Path]], number: int) -> None:
    studio, _ = zoo
    classes = list(MODELS.values())[number].get("classes", 5)
    look(page, studio.at(model=f"m{number}", picture="sample-1"))
    for part in PARTS:
        visit(page, part)
        page.hover("#side .patchgrid", position={"x": 5, "y": 5})
        settled(page, MOMENT)
        assert said(page) == "", part
        words = page.inner_text("#stage")
        assert not [one for one in ("undefined", "NaN", "Infinity", "[object", "null") if one in words], (part, words)
        assert page.locator("#panel figure >> visible=true").count() or part == "run" or not classes, part
    assert page.locator("#panel .run >> text=weights alone").count() == 1


def shown(page: Page) -> dict[str, str]:
    """What stands beside the picture."""
    names = page.locator("#side .answer .name").all_inner_texts()
    return dict(zip(names, page.locator("#side .answer .value").all_inner_texts(), strict=True))


def expected(path: Path, sample: int) -> dict[str, str]:
    """The same by vitrail itself."""
    model = vitrail.load(path)
    with torch.no_grad():
        odds = model(vitrail.prepare(model, [Samples().content(sample)])).softmax(-1)[0]
    best = odds.argsort(descending=True, stable=True)[:5].tolist()
    return {f"class {number}": f"{100 * odds[number].item():.1f} %" for number in best}


def test_two_tabs_do_not_disturb_each_other(browser: Browser, zoo: tuple[Studio, list[Path]]) -> None:
    studio, paths = zoo
    numbers = [list(MODELS).index(name) for name in ("registers, rotary", "map, relative")]
    truth = {(number, sample): expected(paths[number], sample) for number in numbers for sample in (1, 2, 4)}
    context = browser.new_context()
    tabs = [context.new_page() for _ in numbers]
    for tab in tabs:
        tab.set_default_timeout(LONG)
    with Watched(tabs[0]), Watched(tabs[1]):
        for tab, number in zip(tabs, numbers, strict=True):
            look(tab, studio.at(model=f"m{number}", picture="sample-1", part="lens"))
        for samples in ((1, 2), (2, 1), (4, 4), (1, 2)):
            for tab, number, sample in zip(tabs, numbers, samples, strict=True):  # both are asked before either has answered
                address = urlencode({"model": f"m{number}", "picture": f"sample-{sample}", "part": "lens"})
                tab.evaluate("(hash) => { location.hash = hash; }", address)
            for tab, number, sample in zip(tabs, numbers, samples, strict=True):
                settled(tab)
                assert shown(tab) == truth[number, sample]
                assert said(tab) == ""
    context.close()


def test_a_page_outlives_its_studio(page: Page, tmp_path: Path) -> None:
    """It says that the studio was stopped; it goes on with the next, and brings along what was uploaded."""
    model = saved(tmp_path / "model")
    WATCHED[page].expected = (REFUSED, "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
    with opened([model], "--token", TOKEN) as studio:
        port = str(urlsplit(studio.url).port)
        look(page, studio.at(part="picture"))
        upload(page, "kept.png", turned())
        visit(page, "lens")
        before = shown(page)
    page.locator("#side .answer button").nth(1).click()
    settled(page)
    assert said(page).startswith("The studio does not answer")
    assert shown(page) == before, "what was shown stays"

    with opened([model], "--token", TOKEN, "--port", port):
        page.locator("#side .answer button").nth(2).click()
        settled(page)
        assert said(page) == "", "it answers again"
        assert shown(page) == before
        assert page.locator("#side .answer li.chosen .name").inner_text() == list(before)[2]
        assert "picture=upload-" in page.url
        visit(page, "flow")
        assert page.locator("figure[data-figure=flow-map] canvas.over >> visible=true").count() == 1
        assert said(page) == ""

    with opened([model], "--token", "another-token-of-another-studio", "--port", port):
        page.locator("#side .answer button").nth(3).click()
        settled(page)
        assert "started anew" in said(page)


def test_that_a_picture_is_not_there_is_told_in_every_part(page: Page, studio: Studio) -> None:
    WATCHED[page].expected = (REFUSED,)
    look(page, studio.at(part="lens", picture="sample-99"))
    for part in ("flow", "attention", "picture"):
        visit(page, part)
        assert said(page).startswith("there is no picture sample-99"), part
    page.click("text=Save this page")
    assert said(page).startswith("There is no explanation to save yet")
    page.select_option(".chooser label:has-text('From') select", "samples")
    page.click(".shelf button[data-picture=sample-2]")
    settled(page)
    assert said(page) == ""
    assert shown(page)


def test_a_run_that_is_deleted_under_the_page_is_told_in_one_sentence(page: Page, run: Path, tmp_path: Path) -> None:
    WATCHED[page].expected = (REFUSED,)
    copy = tmp_path / "gone"
    shutil.copytree(run, copy)
    with opened([copy]) as studio:
        look(page, studio.at(part="lens"))
        shutil.rmtree(copy)
        sentence = "the folder of gone is no longer there"
        for part in ("run", "inside", "flow"):
            visit(page, part)
            assert sentence in said(page) + page.inner_text("#panel"), part
            assert str(tmp_path) not in said(page), "a path is nobody's business"
        paste(page, studio.at(part="lens", picture="sample-1", step=6))
        assert said(page).startswith(sentence)
        page.reload()
        settled(page)
        assert sentence in page.inner_text("#panel")


def resident(studio: Studio) -> int:
    """Bytes of memory that its process holds."""
    status = Path(f"/proc/{studio.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


@pytest.mark.slow
def test_memory_stays_flat_over_two_hundred_pictures(tmp_path: Path) -> None:
    """All answers together are some hundred megabytes more than are kept."""
    path = saved(tmp_path / "model", image=(56, 60), patch=(4, 4), width=24, depth=4, heads=3)
    drawn = np.random.default_rng(0)
    answers, held = 0, []
    with opened([path]) as studio:
        for number in range(200):
            stream = BytesIO()
            Image.fromarray(drawn.integers(0, 256, (300, 200, 3), np.uint8)).save(stream, "PNG", compress_level=0)
            asked = Request(f"{studio.url}api/upload?name={number}.png", stream.getvalue(), method="POST")
            id = json.load(urlopen(asked))["id"]
            with urlopen(f"{studio.url}api/trace?model=m0&picture={id}") as answer:
                answers += len(answer.read())
            if number in (99, 199):
                held.append(resident(studio))
            if number == 99:
                assert answers > ROOM, "what is kept is full by now"
        with urlopen(f"{studio.url}api/pictures?album=uploads&split=all&count=60") as answer:
            assert json.load(answer)["total"] == UPLOADS
    assert abs(held[1] - held[0]) < 40 * 2**20, held
