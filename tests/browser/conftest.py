"""One browser per test file, and a new page per test, which must log no errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.opening import LONG, SIZES, Studio, Watched, chromium, opened
from tests.browser.runs import MODELS, large, saved, small_run


@pytest.fixture(scope="module")  # while it is open, this process can run no other event loop, which a server needs
def browser() -> Iterator[Browser]:
    binary = chromium()
    if binary is None:
        pytest.skip("Chromium is not installed; apt install chromium-headless-shell")
    expect.set_options(timeout=LONG)
    with sync_playwright() as player:
        made = player.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def studio(run: Path) -> Iterator[Studio]:
    with opened([run]) as made:
        yield made


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Studio, list[Path]]]:
    """One studio with models of every kind; the last is large."""
    folder = tmp_path_factory.mktemp("zoo")
    paths = [saved(folder / name, **changes) for name, changes in MODELS.items()]
    with opened([*paths, large(folder / "large")]) as made:
        yield made, paths


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    width, height = SIZES["laptop"]
    made = browser.new_page(viewport={"width": width, "height": height}, accept_downloads=True, reduced_motion="reduce")
    made.set_default_timeout(LONG)
    with Watched(made):
        yield made
    made.close()
