"""A studio in a process of its own, and a browser that looks at it: what is proved here is proved as a person would see it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
LONG = 120_000  # milliseconds that a busy machine may take for anything
SIZES = {"laptop": (1280, 720), "large": (1920, 1080), "phone": (390, 844)}


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

    def __enter__(self) -> "Watched":
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.addresses.append(request.url))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            strangers = [url for url in self.addresses if urlsplit(url).scheme not in ("blob", "data", "file")]
            assert {urlsplit(url).hostname for url in strangers} <= {self.allowed}, strangers
            assert not [said for said in self.complaints if not any(part in said for part in self.expected)], self.complaints


def look(page: Page, url: str) -> None:
    """Until the first picture is explained."""
    page.goto(url)
    page.wait_for_selector("body[data-ready=true]", timeout=LONG)
