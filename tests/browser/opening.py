"""A studio in its own process, and a browser that opens it: the tests see what a user sees."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Page, Request

ROOT = Path(__file__).parents[2]
LONG = 120_000  # timeout in milliseconds, for a busy machine
SIZES = {"laptop": (1280, 720), "large": (1920, 1080), "phone": (390, 844)}
PARTS = ("image", "patches", "tokens", "attention", "saliency", "lens", "prediction", "model", "architecture", "run")
REFUSED = "the server responded with a status of 4"  # console message of an error response
QUIET, MOMENT = 250, 50  # milliseconds without a request: the page debounces typing by up to 200; without typing


def chromium() -> str | None:
    """Return the path of Chromium, or None."""
    return next((path for name in ("chromium-headless-shell", "chromium") if (path := shutil.which(name))), None)


@dataclass
class Studio:
    """A running studio and its URL, including the token."""

    process: "subprocess.Popen[str]"
    url: str

    def at(self, **state: Any) -> str:
        return f"{self.url}#{urlencode(state)}"


@contextmanager
def opened(
    sources: Sequence[str | Path], *options: str, cache: Path | None = None, threads: int | None = 1
) -> Iterator[Studio]:
    command = [sys.executable, "-m", "vitrail", "studio", *map(str, sources), "--no-browser", "--json", *options]
    env = {**os.environ, **({"VITRAIL_CACHE": str(cache)} if cache else {})}
    env |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Studio(process, json.loads(line)["url"])
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
        process.stderr.close()


@dataclass
class Watched:
    """Checks that a page sends requests only to the studio, and has no console or page errors."""

    page: Page
    allowed: str = "127.0.0.1"
    complaints: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # substrings of errors that a test provokes
    waiting: set[Request] = field(default_factory=set)  # pending requests

    def __enter__(self) -> "Watched":
        WATCHED[self.page] = self
        self.page.on("request", lambda request: self.waiting.add(request) if "/api/events" not in request.url else None)
        self.page.on("requestfinished", lambda request: self.waiting.discard(request))
        self.page.on("requestfailed", lambda request: self.waiting.discard(request))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del WATCHED[self.page]
        if error is None:
            strangers = [url for url in self.addresses if urlsplit(url).scheme not in ("blob", "data", "file")]
            assert {urlsplit(url).hostname for url in strangers} <= {self.allowed}, strangers
            assert not [said for said in self.complaints if not any(part in said for part in self.expected)], self.complaints


WATCHED: dict[Page, Watched] = {}


def look(page: Page, url: str) -> None:
    """Open a URL and wait until the first image is traced."""
    page.goto(url)
    page.wait_for_selector("body[data-ready=true]", timeout=LONG)


def settled(page: Page, quiet: int = QUIET) -> None:
    """Wait until no request is pending, the URL is written, and all responses are drawn."""
    calm, step = 0, 25
    end = time.monotonic() + LONG / 1000
    while calm < quiet:
        assert time.monotonic() < end, [request.url for request in WATCHED[page].waiting]
        page.wait_for_timeout(step)
        calm = 0 if WATCHED[page].waiting else calm + step
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def visit(page: Page, part: str) -> None:
    """Open a part by the navigation."""
    page.eval_on_selector(f"#parts li[data-part={part}] button", "(button) => button.click()")
    settled(page, MOMENT)


def said(page: Page) -> str:
    """Return the status message, if there is one."""
    return page.inner_text("#toast") if page.locator("#toast.shown").count() else ""


def paste(page: Page, url: str) -> None:
    """Paste another link into the open tab, without reloading the page."""
    page.evaluate("(hash) => { location.hash = hash; }", urlsplit(url).fragment)
    settled(page, MOMENT)


SEEN = """() => {
  document.activeElement?.blur();
  const section = [...document.querySelectorAll("#panel > section")].find((one) => !one.hidden);
  const roots = [document.getElementById("top"), document.getElementById("side"), section];
  const all = (what) => roots.flatMap((root) => [...root.querySelectorAll(what)]).filter((one) => one.checkVisibility());
  return {
    title: document.title,
    text: roots.map((root) => root.innerText),
    values: all("input, select").map((one) => one.value),
    charts: all("svg path").map((one) => one.getAttribute("d")),
    canvases: all("canvas").map((one) => one.toDataURL()),
  };
}"""


def seen(page: Page) -> dict[str, Any]:
    """Return everything visible in the open part and next to it, so that two views can be compared."""
    page.mouse.move(1, 1)  # away from everything that reacts to hovering
    settled(page)
    return page.evaluate(SEEN)


def same(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the differences as text."""
    found = [
        f"{name}: {one[name]!r} is not {other[name]!r}" for name in ("title", "text", "values") if one[name] != other[name]
    ]
    return found + [f"different {name}" for name in ("charts", "canvases") if one[name] != other[name]]
