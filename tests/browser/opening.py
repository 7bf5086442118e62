"""A studio in a process of its own, and a browser that looks at it: what is proved here is proved as a person would see it."""

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
LONG = 120_000  # milliseconds that a busy machine may take for anything
SIZES = {"laptop": (1280, 720), "large": (1920, 1080), "phone": (390, 844)}
PARTS = ("picture", "patches", "tokens", "attention", "flow", "lens", "prediction", "inside", "shapes", "run")
REFUSED = "the server responded with a status of 4"  # what a console says of an answer that is a sentence
QUIET, MOMENT = 250, 50  # milliseconds without a question: the page waits up to 200 for somebody who types; without that


def chromium() -> str | None:
    """Where Debian's package puts it, or any other that is there."""
    return next((path for name in ("chromium-headless-shell", "chromium") if (path := shutil.which(name))), None)


@dataclass
class Studio:
    """Its address, token and all."""

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
    """What a page must never do: ask anybody but the studio, complain on the console, fail."""

    page: Page
    allowed: str = "127.0.0.1"
    complaints: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of complaints that a test brings about on purpose
    waiting: set[Request] = field(default_factory=set)  # questions without an answer yet

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
    """Until the first picture is explained."""
    page.goto(url)
    page.wait_for_selector("body[data-ready=true]", timeout=LONG)


def settled(page: Page, quiet: int = QUIET) -> None:
    """Until nothing is asked any more, the address is written, and what was answered is drawn."""
    calm, step = 0, 25
    end = time.monotonic() + LONG / 1000
    while calm < quiet:
        assert time.monotonic() < end, [request.url for request in WATCHED[page].waiting]
        page.wait_for_timeout(step)
        calm = 0 if WATCHED[page].waiting else calm + step
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def visit(page: Page, part: str) -> None:
    """By the story."""
    page.eval_on_selector(f"#story li[data-part={part}] button", "(button) => button.click()")
    settled(page, MOMENT)


def said(page: Page) -> str:
    """The sentence for the person, if there is one."""
    return page.inner_text("#said") if page.locator("#said.shown").count() else ""


def paste(page: Page, url: str) -> None:
    """Another link into the tab that is open: the page is not loaded anew."""
    page.evaluate("(hash) => { location.hash = hash; }", urlsplit(url).fragment)
    settled(page, MOMENT)


SEEN = """() => {
  document.activeElement?.blur();
  const section = [...document.querySelectorAll("#panel > section")].find((one) => !one.hidden);
  const places = [document.getElementById("top"), document.getElementById("side"), section];
  const all = (what) => places.flatMap((place) => [...place.querySelectorAll(what)]).filter((one) => one.checkVisibility());
  return {
    title: document.title,
    words: places.map((place) => place.innerText),
    values: all("input, select").map((one) => one.value),
    charts: all("svg path").map((one) => one.getAttribute("d")),
    canvases: all("canvas").map((one) => one.toDataURL()),
  };
}"""


def seen(page: Page) -> dict[str, Any]:
    """All that is to be seen of the part in view and beside it, so that two views can be compared."""
    page.mouse.move(1, 1)  # away from everything that shows what is pointed at
    settled(page)
    return page.evaluate(SEEN)


def same(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What differs, in words."""
    found = [
        f"{name}: {one[name]!r} is not {other[name]!r}" for name in ("title", "words", "values") if one[name] != other[name]
    ]
    return found + [f"other {name}" for name in ("charts", "canvases") if one[name] != other[name]]
