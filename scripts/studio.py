"""Latency and memory of the studio: selecting an image until it is explained, and redrawing all heads for another patch.

    python -m scripts.studio WEIGHTS DATA [--images 200]

A real browser clicks through real images. Needs Chromium and Playwright, as the tests do.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.studio_page import TIMEOUT_MS, find_chromium, run_studio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("weights")
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=200)
    arguments = parser.parse_args()
    with run_studio([arguments.weights], "--data", arguments.data, threads=None) as studio, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto(studio.link(part="attention"))
        page.wait_for_selector("body[data-ready=true]", timeout=TIMEOUT_MS)
        seconds, memory = [], []
        for number in range(arguments.images):
            seconds.append(_time_image(page, number))
            if number % (arguments.images // 4 or 1) == arguments.images // 4 - 1:
                memory.append(_resident_bytes(studio.process))
        redraws = [_time_redraw(page, token) for token in range(20)]
        browser.close()
    summary = {
        "first_view_median": statistics.median(seconds),
        "first_view_worst": max(seconds),
        "redraw_median_ms": statistics.median(redraws),
        "redraw_worst_ms": max(redraws),
        "server_mib_over_time": [round(size / 2**20) for size in memory],
        "images": arguments.images,
    }
    json.dump(summary, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _time_image(page: Page, number: int) -> float:
    """Measure the seconds until the heads of another image are drawn."""
    start = time.perf_counter()
    page.evaluate(
        """async (number) => {
            const state = await import("./url_state.js"), {store} = await import("./store.js");
            const before = store.trace, splits = store.info.datasets.at(-1).splits;
            let at = number;
            const split = splits.find(({count}) => (at < count ? true : ((at -= count), false))) ?? splits[0];
            state.set({image: `${store.info.datasets.at(-1).id}-${split.name}-${at % split.count}`});
            while (store.trace === before) await new Promise((done) => setTimeout(done, 2));
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }""",
        number,
    )
    return time.perf_counter() - start


def _time_redraw(page: Page, token: int) -> float:
    """Measure the milliseconds to redraw every head."""
    page.evaluate(
        """async (token) => {
            const {store} = await import("./store.js");
            store.hover(token + store.trace.meta.prefix);
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }""",
        token,
    )
    return float(page.evaluate("document.body.dataset.redrawMs"))


def _resident_bytes(process: "subprocess.Popen[str]") -> int:
    """Return the resident memory of the server in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
