"""Screenshots of the README and of the docs: a run's report, an explanation, and the studio.

    python -m scripts.screenshots runs/demo

``make demo`` trains ``runs/demo`` on the embedded fashion images. The three PNG files go to ``docs/images``, with a palette
of colours to keep the repository small. Needs Chromium and Playwright, as the browser tests do.
"""

import argparse
import io
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

import vitrail
from tests.browser.studio_page import TIMEOUT_MS, find_chromium, run_studio
from vitrail.cli.main import run

FIGURES_FOLDER = Path(__file__).parents[1] / "docs" / "images"
IMAGE_INDEX = 21  # a sneaker, in the test split of fashion
MAX_BYTES = 150_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("run", type=Path, help="run folder of the demo")
    parser.add_argument("--out", type=Path, default=FIGURES_FOLDER)
    arguments = parser.parse_args()
    with browser_page(1000, 770) as page:
        save_png(report_screenshot(page, arguments.run), arguments.out / "report.png")
        save_png(explanation_screenshot(page, arguments.run), arguments.out / "explanation.png")
    with browser_page(1280, 860) as page:
        save_png(studio_screenshot(page, arguments.run), arguments.out / "studio.png")


@contextmanager
def browser_page(width: int, height: int) -> Iterator[Page]:
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            yield browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        finally:
            browser.close()


def report_screenshot(page: Page, run_folder: Path) -> bytes:
    page.goto((run_folder / "report.html").resolve().as_uri())
    return page.screenshot(clip={"x": 0, "y": 0, "width": 1000, "height": 700})  # to the end of a row of figures


def explanation_screenshot(page: Page, run_folder: Path) -> bytes:
    """Explain the sneaker and capture the page."""
    pixels = np.asarray(vitrail.open_dataset("fashion").test.read(IMAGE_INDEX))
    model = str(run_folder.resolve())
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # the page shows the file as it was named
        Image.fromarray(pixels[..., 0]).save("sneaker.png")
        assert run(["explain", model, "sneaker.png"]) == 0
        page.goto(Path("explained/index.html").resolve().as_uri())
        return page.screenshot()


def studio_screenshot(page: Page, run_folder: Path) -> bytes:
    with run_studio([run_folder.resolve()], threads=None) as studio:
        page.goto(
            studio.link(part="attention", theme="light", image=f"d0-test-{IMAGE_INDEX}", query=6, layer=2, head=1),
            timeout=TIMEOUT_MS,
        )
        page.wait_for_selector("body[data-ready=true]", timeout=TIMEOUT_MS)
        page.wait_for_load_state("networkidle")
        return page.screenshot()


def save_png(screenshot: bytes, path: Path) -> None:
    """Write a screenshot with a palette of 256 colours, without dithering, as it compresses best."""
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    image.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    assert size < MAX_BYTES, f"{path} has {size:,} bytes, more than {MAX_BYTES:,}"


if __name__ == "__main__":
    main()
