"""Shapes in signatures are checked during the tests; in CI, a skipped parity or browser test counts as failed."""

import gc
import os
from collections.abc import Generator, Iterator
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

SOURCE = Path(__file__).parents[1] / "src"

MUST_RUN = ("parity", "browser", "bare")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-shape-checks", action="store_true", help="for tests marked compile, which the checker breaks")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--no-shape-checks"):
        annotated_files = [file for file in SOURCE.rglob("*.py") if "from jaxtyping import" in file.read_text()]
        modules = [".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in annotated_files]
        install_import_hook(modules, "beartype.beartype")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m "compile ..."``, files without such a test need not be imported."""
    if config.getoption("markexpr").startswith("compile") and collection_path.suffix == ".py":
        return None if "pytest.mark.compile" in collection_path.read_text() else True
    return None


def pytest_collection_finish() -> None:
    """Exempt what was imported from garbage collection, which would traverse it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and any(item.get_closest_marker(mark) for mark in MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _images_are_drawn_and_decoded_once() -> Iterator[None]:
    """Small images of ``panes``, which are a pure function of seed, index and size, and ``fashion``: tests share both."""
    from vitrail.data.sources import open as sources  # after the shape checker
    from vitrail.data.sources.builtin import load_fashion
    from vitrail.data.sources.panes import dataset as panes

    draw, draw_once = panes.draw_scene, lru_cache(10_000)(panes.draw_scene)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panes, "draw_scene", lambda seed, at, size: (draw_once if size == (16, 16) else draw)(seed, at, size))
        patch.setattr(sources, "load_fashion", lru_cache(load_fashion))
        yield


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
