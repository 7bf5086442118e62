"""Unusual use of the page: invalid files, unusual models, two tabs, a studio that stops, very many images."""

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
    """Return an image with EXIF orientation: stored 30 wide and 20 high, its left half red, to be rotated by 90 degrees."""
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
    "words.png": b"this is text and not an image, whatever the name says\n" * 40,
    "empty.png": b"",
    "half.png": png((400, 300), "teal")[:120],
    "page.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "huge.png": png((10_000, 10_000), 1, "L", compress_level=1),
}


def test_a_file_that_is_not_an_image_is_refused_in_one_sentence(page: Page, studio: Studio) -> None:
    WATCHED[page].expected = (REFUSED,)
    look(page, studio.at(part="image"))
    before = page.url
    for name, content in REFUSALS.items():
        upload(page, name, content)
        words = said(page)
        assert name in words
        assert 20 < len(words) < 200
        assert "\n" not in words
        assert page.url == before, "the current image stays"
    page.click(".thumbnails button >> nth=3")
    settled(page)
    assert said(page) == ""
    assert page.url != before


TOP_AND_BOTTOM = """() => {
  const canvas = document.querySelector("#side canvas"), { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(width >> 1, 0, 1, height);
  return [data[0], data[4 * (height - 1)]];
}"""


def test_images_of_any_size_and_orientation_are_shown(page: Page, studio: Studio) -> None:
    look(page, studio.at(part="image"))
    found = {
        "one.png": (png((1, 1)), "1 × 1 pixels"),
        "long.png": (png((900, 2)), "900 × 2 pixels"),
        "turned.png": (turned(), "20 × 30 pixels"),  # upright width and height
        "clear.png": (png((40, 30), (255, 0, 0, 0), "RGBA"), "40 × 30 pixels"),
        "deep.png": (png((31, 30), 40_000, "I;16"), "31 × 30 pixels"),
        "a <b>'\"&%00\n.gif": (png((33, 22), 3, "P", format="GIF"), "33 × 22 pixels"),
    }
    for name, (content, words) in found.items():
        upload(page, name, content)
        assert said(page) == "", name
        assert "image=upload-" in page.url
        assert words in page.inner_text("figure[data-figure=preprocessing]"), name
    upload(page, "turned.png", found["turned.png"][0])
    pixels = page.evaluate(TOP_AND_BOTTOM)
    assert pixels[0] > pixels[1], "red, which is lighter, is at the top of the upright image"
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


def test_an_image_selected_during_an_upload_stays(page: Page, studio: Studio) -> None:
    look(page, studio.at(part="image", image="sample-1"))
    held: list[Route] = []
    page.route("**/api/upload?name=slow.png", lambda route: held.append(route))
    with page.expect_request("**/api/upload?name=slow.png"):
        page.set_input_files("input[type=file]", {"name": "slow.png", "mimeType": "image/png", "buffer": turned()})
    page.click(".thumbnails button[data-image=sample-3]")
    held[0].continue_()
    expect(page.locator("#toast")).to_have_text("slow.png was added to the uploads.")
    settled(page)
    assert "image=sample-3" in page.url


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_an_image_can_be_dropped_and_pasted_in_any_part(page: Page, studio: Studio, kind: str) -> None:
    WATCHED[page].expected = (REFUSED,)
    look(page, studio.at(part="attention"))
    content = png((20 + len(kind), 31), "orange")
    assert page.evaluate(HAND_IN, [kind, f"{kind}.png", base64.b64encode(content).decode()])
    settled(page)
    assert "image=upload-" in page.url
    assert page.inner_text("#side .title") == f"{kind}.png"
    before = page.url
    page.evaluate(HAND_IN, [kind, "words.png", base64.b64encode(b"not an image").decode()])
    settled(page)
    assert "words.png" in said(page)
    assert page.url == before


@pytest.mark.parametrize("number", range(len(MODELS)), ids=list(MODELS))
def test_every_part_shows_every_kind_of_model(page: Page, zoo: tuple[Studio, list[Path]], number: int) -> None:
    studio, _ = zoo
    classes = list(MODELS.values())[number].get("classes", 5)
    look(page, studio.at(model=f"m{number}", image="sample-1"))
    for part in PARTS:
        visit(page, part)
        page.hover("#side .patch-grid", position={"x": 5, "y": 5})
        settled(page, MOMENT)
        assert said(page) == "", part
        words = page.inner_text("#content")
        assert not [one for one in ("undefined", "NaN", "Infinity", "[object", "null") if one in words], (part, words)
        assert page.locator("#panel figure >> visible=true").count() or part == "run" or not classes, part
    assert page.locator("#panel .run >> text=weights without a run").count() == 1


def shown(page: Page) -> dict[str, str]:
    """Return the predictions in the side panel."""
    names = page.locator("#side .predictions .name").all_inner_texts()
    return dict(zip(names, page.locator("#side .predictions .value").all_inner_texts(), strict=True))


def expected(path: Path, sample: int) -> dict[str, str]:
    """Return the same predictions by vitrail itself."""
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
            look(tab, studio.at(model=f"m{number}", image="sample-1", part="lens"))
        for samples in ((1, 2), (2, 1), (4, 4), (1, 2)):
            for tab, number, sample in zip(
                tabs, numbers, samples, strict=True
            ):  # both requests are sent before either response
                address = urlencode({"model": f"m{number}", "image": f"sample-{sample}", "part": "lens"})
                tab.evaluate("(hash) => { location.hash = hash; }", address)
            for tab, number, sample in zip(tabs, numbers, samples, strict=True):
                settled(tab)
                assert shown(tab) == truth[number, sample]
                assert said(tab) == ""
    context.close()


def test_a_page_outlives_its_studio(page: Page, tmp_path: Path) -> None:
    """It says that the studio was stopped; it works with the next one, and uploads its images again."""
    model = saved(tmp_path / "model")
    WATCHED[page].expected = (REFUSED, "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET")
    with opened([model], "--token", TOKEN) as studio:
        port = str(urlsplit(studio.url).port)
        look(page, studio.at(part="image"))
        upload(page, "kept.png", turned())
        visit(page, "lens")
        before = shown(page)
    page.locator("#side .predictions button").nth(1).click()
    settled(page)
    assert said(page).startswith("The studio does not respond")
    assert shown(page) == before, "the last prediction stays"

    with opened([model], "--token", TOKEN, "--port", port):
        page.locator("#side .predictions button").nth(2).click()
        settled(page)
        assert said(page) == "", "it responds again"
        assert shown(page) == before
        assert page.locator("#side .predictions li.selected .name").inner_text() == list(before)[2]
        assert "image=upload-" in page.url
        visit(page, "saliency")
        assert page.locator("figure[data-figure=saliency-map] canvas.over >> visible=true").count() == 1
        assert said(page) == ""

    with opened([model], "--token", "another-token-of-another-studio", "--port", port):
        page.locator("#side .predictions button").nth(3).click()
        settled(page)
        assert "restarted" in said(page)


def test_a_missing_image_is_reported_in_every_part(page: Page, studio: Studio) -> None:
    WATCHED[page].expected = (REFUSED,)
    look(page, studio.at(part="lens", image="sample-99"))
    for part in ("saliency", "attention", "image"):
        visit(page, part)
        assert said(page).startswith("there is no image sample-99"), part
    page.click("text=Save this page")
    assert said(page).startswith("There is nothing to save yet")
    page.select_option(".chooser label:has-text('Dataset') select", "samples")
    page.click(".thumbnails button[data-image=sample-2]")
    settled(page)
    assert said(page) == ""
    assert shown(page)


def test_a_run_deleted_while_the_page_is_open_is_reported_in_one_sentence(page: Page, run: Path, tmp_path: Path) -> None:
    WATCHED[page].expected = (REFUSED,)
    copy = tmp_path / "gone"
    shutil.copytree(run, copy)
    with opened([copy]) as studio:
        look(page, studio.at(part="lens"))
        shutil.rmtree(copy)
        sentence = "the folder of gone is no longer there"
        for part in ("run", "model", "saliency"):
            visit(page, part)
            assert sentence in said(page) + page.inner_text("#panel"), part
            assert str(tmp_path) not in said(page), "no path is revealed"
        paste(page, studio.at(part="lens", image="sample-1", step=6))
        assert said(page).startswith(sentence)
        page.reload()
        settled(page)
        assert sentence in page.inner_text("#panel")


def resident(studio: Studio) -> int:
    """Return the resident memory of its process in bytes."""
    status = Path(f"/proc/{studio.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


@pytest.mark.slow
def test_memory_stays_flat_over_two_hundred_images(tmp_path: Path) -> None:
    """All responses together are some hundred megabytes larger than the cache."""
    path = saved(tmp_path / "model", image=(56, 60), patch=(4, 4), width=24, depth=4, heads=3)
    drawn = np.random.default_rng(0)
    answers, held = 0, []
    with opened([path]) as studio:
        for number in range(200):
            stream = BytesIO()
            Image.fromarray(drawn.integers(0, 256, (300, 200, 3), np.uint8)).save(stream, "PNG", compress_level=0)
            asked = Request(f"{studio.url}api/upload?name={number}.png", stream.getvalue(), method="POST")
            id = json.load(urlopen(asked))["id"]
            with urlopen(f"{studio.url}api/trace?model=m0&image={id}") as answer:
                answers += len(answer.read())
            if number in (99, 199):
                held.append(resident(studio))
            if number == 99:
                assert answers > ROOM, "the cache is full by now"
        with urlopen(f"{studio.url}api/images?dataset=uploads&split=all&count=60") as answer:
            assert json.load(answer)["total"] == UPLOADS
    assert abs(held[1] - held[0]) < 40 * 2**20, held
