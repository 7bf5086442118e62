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
TIMEOUT_MS = 120_000  # timeout in milliseconds, for a busy machine
VIEWPORTS = {"laptop": (1280, 720), "large": (1920, 1080), "phone": (390, 844)}
PARTS = ("image", "patches", "tokens", "attention", "saliency", "lens", "prediction", "model", "architecture", "run")
ERROR_RESPONSE = "the server responded with a status of 4"  # console message of an error response
QUIET_MS, MOMENT_MS = 250, 50  # milliseconds without a request: the page debounces typing by up to 200; without typing


def find_chromium() -> str | None:
    """Return the path of Chromium, or None."""
    return next((path for name in ("chromium-headless-shell", "chromium") if (path := shutil.which(name))), None)


@dataclass
class RunningStudio:
    """A running studio and its URL, including the token."""

    process: "subprocess.Popen[str]"
    url: str

    def link(self, **state: Any) -> str:
        return f"{self.url}#{urlencode(state)}"


@contextmanager
def run_studio(
    sources: Sequence[str | Path], *options: str, cache: Path | None = None, threads: int | None = 1
) -> Iterator[RunningStudio]:
    command = [sys.executable, "-m", "vitrail", "studio", *map(str, sources), "--no-browser", "--json", *options]
    env = {**os.environ, **({"VITRAIL_CACHE": str(cache)} if cache else {})}
    env |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield RunningStudio(process, json.loads(line)["url"])
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
        process.stderr.close()


@dataclass
class WatchedPage:
    """Checks that a page sends requests only to the studio, and has no console or page errors."""

    page: Page
    allowed_host: str = "127.0.0.1"
    errors: list[str] = field(default_factory=list)
    requested_urls: list[str] = field(default_factory=list)
    expected_errors: tuple[str, ...] = ()  # substrings of errors that a test provokes
    pending_requests: set[Request] = field(default_factory=set)  # pending requests

    def __enter__(self) -> "WatchedPage":
        WATCHED_PAGES[self.page] = self
        self.page.on(
            "request", lambda request: self.pending_requests.add(request) if "/api/events" not in request.url else None
        )
        self.page.on("requestfinished", lambda request: self.pending_requests.discard(request))
        self.page.on("requestfailed", lambda request: self.pending_requests.discard(request))
        self.page.on(
            "console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requested_urls.append(request.url))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        del WATCHED_PAGES[self.page]
        if error is None:
            strangers = [url for url in self.requested_urls if urlsplit(url).scheme not in ("blob", "data", "file")]
            assert {urlsplit(url).hostname for url in strangers} <= {self.allowed_host}, strangers
            assert not [message for message in self.errors if not any(part in message for part in self.expected_errors)], (
                self.errors
            )


WATCHED_PAGES: dict[Page, WatchedPage] = {}


def open_page(page: Page, url: str) -> None:
    """Open a URL and wait until the first image is traced; the page writes the image into its URL a little later."""
    page.goto(url)
    page.wait_for_selector("body[data-ready=true]", timeout=TIMEOUT_MS)


def wait_until_idle(page: Page, quiet_ms: int = QUIET_MS) -> None:
    """Wait until no request is pending, the URL is written, and all responses are drawn."""
    idle_ms, step = 0, 25
    end = time.monotonic() + TIMEOUT_MS / 1000
    while idle_ms < quiet_ms:
        assert time.monotonic() < end, [request.url for request in WATCHED_PAGES[page].pending_requests]
        page.wait_for_timeout(step)
        idle_ms = 0 if WATCHED_PAGES[page].pending_requests else idle_ms + step
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")


def open_part(page: Page, part: str) -> None:
    """Open a part by the navigation."""
    page.eval_on_selector(f"#parts li[data-part={part}] button", "(button) => button.click()")
    wait_until_idle(page, MOMENT_MS)


def status_message(page: Page) -> str:
    """Return the status message, if there is one."""
    return page.inner_text("#toast") if page.locator("#toast.shown").count() else ""


def paste_link(page: Page, url: str) -> None:
    """Paste another link into the open tab, without reloading the page."""
    page.evaluate("(hash) => { location.hash = hash; }", urlsplit(url).fragment)
    wait_until_idle(page, MOMENT_MS)


VIEW_SCRIPT = """() => {
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


def capture_view(page: Page) -> dict[str, Any]:
    """Return everything visible in the open part and next to it, so that two views can be compared."""
    page.mouse.move(1, 1)  # away from everything that reacts to hovering
    wait_until_idle(page)
    return page.evaluate(VIEW_SCRIPT)


def view_differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the differences as text."""
    differences = [
        f"{name}: {one[name]!r} is not {other[name]!r}" for name in ("title", "text", "values") if one[name] != other[name]
    ]
    return differences + [f"different {name}" for name in ("charts", "canvases") if one[name] != other[name]]
