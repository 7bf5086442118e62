"""How quick the studio is: from choosing a picture to seeing it explained, all heads once more for another patch, and memory.

    python -m scripts.studio WEIGHTS DATA [--pictures 200]
    python -m scripts.studio RUN DATA --picture docs/pictures/studio.png

A real browser clicks through real pictures, or takes the picture of the README. Needs Chromium and Playwright, as the tests do.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.opening import LONG, chromium, opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("weights")
    parser.add_argument("data")
    parser.add_argument("--pictures", type=int, default=200)
    parser.add_argument("--picture", metavar="OUT")
    asked = parser.parse_args()
    if asked.picture:
        _taken(asked.weights, asked.data, asked.picture)
        return
    with opened([asked.weights], "--data", asked.data, threads=None) as studio, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.goto(studio.at(part="attention"))
        page.wait_for_selector("body[data-ready=true]", timeout=LONG)
        seconds, memory = [], []
        for number in range(asked.pictures):
            seconds.append(_chosen(page, number))
            if number % (asked.pictures // 4 or 1) == asked.pictures // 4 - 1:
                memory.append(_resident(studio.process))
        walls = [_pointed(page, token) for token in range(20)]
        browser.close()
    told = {
        "first_view_median": statistics.median(seconds),
        "first_view_worst": max(seconds),
        "redraw_median_ms": statistics.median(walls),
        "redraw_worst_ms": max(walls),
        "server_mib_over_time": [round(size / 2**20) for size in memory],
        "pictures": asked.pictures,
    }
    json.dump(told, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _taken(run: str, data: str, out: str) -> None:
    with opened([run], "--data", data, threads=None) as studio, sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(studio.at(part="attention", theme="light", picture="d0-test-21", query=18, layer=2, head=1))
        page.wait_for_selector("body[data-ready=true]", timeout=LONG)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=out)
        browser.close()


def _chosen(page: Page, number: int) -> float:
    """Until the heads of another picture are on the screen."""
    start = time.perf_counter()
    page.evaluate(
        """async (number) => {
            const state = await import("./state.js"), {studio} = await import("./studio.js");
            const before = studio.trace, splits = studio.facts.albums.at(-1).splits;
            let at = number;
            const split = splits.find(({count}) => (at < count ? true : ((at -= count), false))) ?? splits[0];
            state.set({picture: `${studio.facts.albums.at(-1).id}-${split.name}-${at % split.count}`});
            while (studio.trace === before) await new Promise((done) => setTimeout(done, 2));
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }""",
        number,
    )
    return time.perf_counter() - start


def _pointed(page: Page, token: int) -> float:
    """Milliseconds in which every head is drawn once more."""
    page.evaluate(
        """async (token) => {
            const {studio} = await import("./studio.js");
            studio.hover(token + studio.trace.facts.prefix);
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
        }""",
        token,
    )
    return float(page.evaluate("document.body.dataset.wall"))


def _resident(process: "subprocess.Popen[str]") -> int:
    """Bytes that the server has in memory."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


if __name__ == "__main__":
    main()
