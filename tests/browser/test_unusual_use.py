"""Unusual use of the page: invalid files, unusual models, two tabs, a studio that stops, very many images."""

import base64
import json
import shutil
from collections.abc import Callable
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
from tests.browser.sample_models import MODEL_CHANGES, save_model
from tests.browser.studio_page import (
    ERROR_RESPONSE,
    MOMENT_MS,
    PARTS,
    TIMEOUT_MS,
    WATCHED_PAGES,
    RunningStudio,
    WatchedPage,
    open_page,
    open_part,
    paste_link,
    run_studio,
    status_message,
    wait_until_idle,
)
from vitrail.studio.sample_images import Samples
from vitrail.studio.service import MAX_CACHED_BYTES
from vitrail.studio.uploads import MAX_UPLOADS

pytestmark = pytest.mark.browser
TOKEN = "the-same-token-for-both-studios"


def make_png(size: tuple[int, int], colour: Any = "teal", mode: str = "RGB", **options: Any) -> bytes:
    stream = BytesIO()
    Image.new(mode, size, colour).save(stream, options.pop("format", "PNG"), **options)
    return stream.getvalue()


def rotated_png() -> bytes:
    """Return an image with EXIF orientation: stored 30 wide and 20 high, its left half red, to be rotated by 90 degrees."""
    image = Image.new("RGB", (30, 20), "blue")
    image.paste("red", (0, 0, 15, 20))
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = BytesIO()
    image.save(stream, "PNG", exif=exif)
    return stream.getvalue()


def upload_file(page: Page, name: str, content: bytes) -> None:
    page.set_input_files("input[type=file]", {"name": name, "mimeType": "image/png", "buffer": content})
    wait_until_idle(page)


INVALID_FILES: dict[str, Callable[[], bytes]] = {
    "words.png": lambda: b"this is text and not an image, whatever the name says\n" * 40,
    "empty.png": lambda: b"",
    "half.png": lambda: make_png((400, 300), "teal")[:120],
    "page.svg": lambda: b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "huge.png": lambda: make_png((10_000, 10_000), 1, "L", compress_level=1),
}


def test_a_file_that_is_not_an_image_is_refused_in_one_sentence(page: Page, studio: RunningStudio) -> None:
    WATCHED_PAGES[page].expected_errors = (ERROR_RESPONSE,)
    open_page(page, studio.link(part="image"))
    wait_until_idle(page)
    before = page.url
    for name, make_content in INVALID_FILES.items():
        upload_file(page, name, make_content())
        text = status_message(page)
        assert name in text
        assert 20 < len(text) < 200
        assert "\n" not in text
        assert page.url == before, "the current image stays"
    page.click(".thumbnails button >> nth=3")
    wait_until_idle(page)
    assert status_message(page) == ""
    assert page.url != before


TOP_AND_BOTTOM = """() => {
  const canvas = document.querySelector("#side canvas"), { width, height } = canvas;
  const { data } = canvas.getContext("2d").getImageData(width >> 1, 0, 1, height);
  return [data[0], data[4 * (height - 1)]];
}"""


@pytest.mark.thorough
def test_images_of_any_size_and_orientation_are_shown(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link(part="image"))
    uploads = {
        "one.png": (make_png((1, 1)), "1 × 1 pixels"),
        "long.png": (make_png((900, 2)), "900 × 2 pixels"),
        "turned.png": (rotated_png(), "20 × 30 pixels"),  # upright width and height
        "clear.png": (make_png((40, 30), (255, 0, 0, 0), "RGBA"), "40 × 30 pixels"),
        "deep.png": (make_png((31, 30), 40_000, "I;16"), "31 × 30 pixels"),
        "a <b>'\"&%00\n.gif": (make_png((33, 22), 3, "P", format="GIF"), "33 × 22 pixels"),
    }
    for name, (content, text) in uploads.items():
        upload_file(page, name, content)
        assert status_message(page) == "", name
        assert "image=upload-" in page.url
        assert text in page.inner_text("figure[data-figure=preprocessing]"), name
    upload_file(page, "turned.png", uploads["turned.png"][0])
    pixels = page.evaluate(TOP_AND_BOTTOM)
    assert pixels[0] > pixels[1], "red, which is lighter, is at the top of the upright image"
    for part in PARTS:
        open_part(page, part)
    assert status_message(page) == ""


DROP_OR_PASTE = """([kind, name, content]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)), carried = new DataTransfer();
  carried.items.add(new File([bytes], name, { type: "image/png" }));
  const happened = kind === "drop" ? new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true })
    : new ClipboardEvent("paste", { clipboardData: carried, bubbles: true, cancelable: true });
  document.body.dispatchEvent(happened);
  return happened.defaultPrevented;
}"""


@pytest.mark.thorough
def test_an_image_selected_during_an_upload_stays(page: Page, studio: RunningStudio) -> None:
    open_page(page, studio.link(part="image", image="sample-1"))
    pending: list[Route] = []
    page.route("**/api/upload?name=slow.png", lambda route: pending.append(route))
    with page.expect_request("**/api/upload?name=slow.png"):
        page.set_input_files("input[type=file]", {"name": "slow.png", "mimeType": "image/png", "buffer": rotated_png()})
    page.click(".thumbnails button[data-image=sample-3]")
    pending[0].continue_()
    expect(page.locator("#toast")).to_have_text("slow.png was added to the uploads.")
    wait_until_idle(page)
    assert "image=sample-3" in page.url


@pytest.mark.parametrize("kind", ["drop", pytest.param("paste", marks=pytest.mark.thorough)])
def test_an_image_can_be_dropped_and_pasted_in_any_part(page: Page, studio: RunningStudio, kind: str) -> None:
    WATCHED_PAGES[page].expected_errors = (ERROR_RESPONSE,)
    open_page(page, studio.link(part="attention"))
    content = make_png((20 + len(kind), 31), "orange")
    assert page.evaluate(DROP_OR_PASTE, [kind, f"{kind}.png", base64.b64encode(content).decode()])
    wait_until_idle(page)
    assert "image=upload-" in page.url
    assert page.inner_text("#side .title") == f"{kind}.png"
    before = page.url
    page.evaluate(DROP_OR_PASTE, [kind, "words.png", base64.b64encode(b"not an image").decode()])
    wait_until_idle(page)
    assert "words.png" in status_message(page)
    assert page.url == before


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(len(MODEL_CHANGES)), ids=list(MODEL_CHANGES))
def test_every_part_shows_every_kind_of_model(page: Page, zoo: tuple[RunningStudio, list[Path]], number: int) -> None:
    studio, _ = zoo
    classes = list(MODEL_CHANGES.values())[number].get("classes", 5)
    open_page(page, studio.link(model=f"m{number}", image="sample-1"))
    for part in PARTS:
        open_part(page, part)
        page.hover("#side .patch-grid", position={"x": 5, "y": 5})
        wait_until_idle(page, MOMENT_MS)
        assert status_message(page) == "", part
        text = page.inner_text("#content")
        assert not [one for one in ("undefined", "NaN", "Infinity", "[object", "null") if one in text], (part, text)
        assert page.locator("#panel figure >> visible=true").count() or part == "run" or not classes, part
    assert page.locator("#panel .run >> text=weights without a run").count() == 1


def shown_predictions(page: Page) -> dict[str, str]:
    """Return the predictions in the side panel."""
    names = page.locator("#side .predictions .name").all_inner_texts()
    return dict(zip(names, page.locator("#side .predictions .value").all_inner_texts(), strict=True))


def expected_predictions(path: Path, sample: int) -> dict[str, str]:
    """Return the same predictions by vitrail itself."""
    model = vitrail.load(path)
    with torch.no_grad():
        probabilities = model(vitrail.preprocess(model, [Samples().read(sample)])).softmax(-1)[0]
    best = probabilities.argsort(descending=True, stable=True)[:5].tolist()
    return {f"class {number}": f"{100 * probabilities[number].item():.1f} %" for number in best}


@pytest.mark.thorough
def test_two_tabs_do_not_disturb_each_other(browser: Browser, zoo: tuple[RunningStudio, list[Path]]) -> None:
    studio, paths = zoo
    numbers = [list(MODEL_CHANGES).index(name) for name in ("registers, rotary", "map, relative")]
    truth = {(number, sample): expected_predictions(paths[number], sample) for number in numbers for sample in (1, 2, 4)}
    context = browser.new_context()
    tabs = [context.new_page() for _ in numbers]
    for tab in tabs:
        tab.set_default_timeout(TIMEOUT_MS)
    with WatchedPage(tabs[0]), WatchedPage(tabs[1]):
        for tab, number in zip(tabs, numbers, strict=True):
            open_page(tab, studio.link(model=f"m{number}", image="sample-1", part="lens"))
        for samples in ((1, 2), (2, 1), (4, 4), (1, 2)):
            for tab, number, sample in zip(
                tabs, numbers, samples, strict=True
            ):  # both requests are sent before either response
                address = urlencode({"model": f"m{number}", "image": f"sample-{sample}", "part": "lens"})
                tab.evaluate("(hash) => { location.hash = hash; }", address)
            for tab, number, sample in zip(tabs, numbers, samples, strict=True):
                wait_until_idle(tab)
                assert shown_predictions(tab) == truth[number, sample]
                assert status_message(tab) == ""
    context.close()


@pytest.mark.thorough
def test_a_page_outlives_its_studio(page: Page, tmp_path: Path) -> None:
    """It says that the studio was stopped; it works with the next one, and uploads its images again."""
    model = save_model(tmp_path / "model")
    WATCHED_PAGES[page].expected_errors = (
        ERROR_RESPONSE,
        "ERR_CONNECTION_REFUSED",
        "ERR_EMPTY_RESPONSE",
        "ERR_CONNECTION_RESET",
    )
    with run_studio([model], "--token", TOKEN) as studio:
        port = str(urlsplit(studio.url).port)
        open_page(page, studio.link(part="image"))
        upload_file(page, "kept.png", rotated_png())
        open_part(page, "lens")
        before = shown_predictions(page)
    page.locator("#side .predictions button").nth(1).click()
    wait_until_idle(page)
    assert status_message(page).startswith("The studio does not respond")
    assert shown_predictions(page) == before, "the last prediction stays"

    with run_studio([model], "--token", TOKEN, "--port", port):
        page.locator("#side .predictions button").nth(2).click()
        wait_until_idle(page)
        assert status_message(page) == "", "it responds again"
        assert shown_predictions(page) == before
        assert page.locator("#side .predictions li.selected .name").inner_text() == list(before)[2]
        assert "image=upload-" in page.url
        open_part(page, "saliency")
        assert page.locator("figure[data-figure=saliency-map] canvas.over >> visible=true").count() == 1
        assert status_message(page) == ""

    with run_studio([model], "--token", "another-token-of-another-studio", "--port", port):
        page.locator("#side .predictions button").nth(3).click()
        wait_until_idle(page)
        assert "restarted" in status_message(page)


@pytest.mark.thorough
def test_a_missing_image_is_reported_in_every_part(page: Page, studio: RunningStudio) -> None:
    WATCHED_PAGES[page].expected_errors = (ERROR_RESPONSE,)
    open_page(page, studio.link(part="lens", image="sample-99"))
    for part in ("saliency", "attention", "image"):
        open_part(page, part)
        assert status_message(page).startswith("there is no image sample-99"), part
    page.click("text=Save this page")
    assert status_message(page).startswith("There is nothing to save yet")
    page.select_option(".chooser label:has-text('Dataset') select", "samples")
    page.click(".thumbnails button[data-image=sample-2]")
    wait_until_idle(page)
    assert status_message(page) == ""
    assert shown_predictions(page)


@pytest.mark.thorough
def test_a_run_deleted_while_the_page_is_open_is_reported_in_one_sentence(page: Page, run: Path, tmp_path: Path) -> None:
    WATCHED_PAGES[page].expected_errors = (ERROR_RESPONSE,)
    copy = tmp_path / "gone"
    shutil.copytree(run, copy)
    with run_studio([copy]) as studio:
        open_page(page, studio.link(part="lens"))
        shutil.rmtree(copy)
        sentence = "the folder of gone is no longer there"
        for part in ("run", "model", "saliency"):
            open_part(page, part)
            assert sentence in status_message(page) + page.inner_text("#panel"), part
            assert str(tmp_path) not in status_message(page), "no path is revealed"
        paste_link(page, studio.link(part="lens", image="sample-1", step=6))
        assert status_message(page).startswith(sentence)
        page.reload()
        wait_until_idle(page)
        assert sentence in page.inner_text("#panel")


def resident_bytes(studio: RunningStudio) -> int:
    """Return the resident memory of its process in bytes."""
    status = Path(f"/proc/{studio.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) * 1024


@pytest.mark.slow
def test_memory_stays_flat_over_two_hundred_images(tmp_path: Path) -> None:
    """All responses together are some hundred megabytes larger than the cache."""
    path = save_model(tmp_path / "model", image=(56, 60), patch=(4, 4), width=24, depth=4, heads=3)
    sampled = np.random.default_rng(0)
    num_bytes, resident = 0, []
    with run_studio([path]) as studio:
        for number in range(200):
            stream = BytesIO()
            Image.fromarray(sampled.integers(0, 256, (300, 200, 3), np.uint8)).save(stream, "PNG", compress_level=0)
            request = Request(f"{studio.url}api/upload?name={number}.png", stream.getvalue(), method="POST")
            id = json.load(urlopen(request))["id"]
            with urlopen(f"{studio.url}api/trace?model=m0&image={id}") as response:
                num_bytes += len(response.read())
            if number in (99, 199):
                resident.append(resident_bytes(studio))
            if number == 99:
                assert num_bytes > MAX_CACHED_BYTES, "the cache is full by now"
        with urlopen(f"{studio.url}api/images?dataset=uploads&split=all&count=60") as response:
            assert json.load(response)["total"] == MAX_UPLOADS
    assert abs(resident[1] - resident[0]) < 40 * 2**20, resident
