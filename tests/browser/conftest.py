"""One browser per test file, and a new page per test, which must log no errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.sample_models import MODEL_CHANGES, save_large_model, save_model, train_small_label_run, train_small_run
from tests.browser.studio_page import TIMEOUT_MS, VIEWPORTS, RunningStudio, WatchedPage, find_chromium, run_studio


@pytest.fixture(scope="module")  # while it is open, this process can run no other event loop, which a server needs
def browser() -> Iterator[Browser]:
    binary = find_chromium()
    if binary is None:
        pytest.skip("Chromium is not installed; apt install chromium-headless-shell")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as player:
        launched = player.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_small_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def label_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_small_label_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def studio(run: Path) -> Iterator[RunningStudio]:
    with run_studio([run]) as running:
        yield running


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningStudio, list[Path]]]:
    """One studio with models of every kind; the last is large."""
    folder = tmp_path_factory.mktemp("zoo")
    paths = [save_model(folder / name, **changes) for name, changes in MODEL_CHANGES.items()]
    with run_studio([*paths, save_large_model(folder / "large")]) as running:
        yield running, paths


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    width, height = VIEWPORTS["laptop"]
    new_page = browser.new_page(viewport={"width": width, "height": height}, accept_downloads=True, reduced_motion="reduce")
    new_page.set_default_timeout(TIMEOUT_MS)
    with WatchedPage(new_page):
        yield new_page
    new_page.close()
