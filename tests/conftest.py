"""Shapes in signatures are checked during the tests; in CI, a skipped parity or browser test counts as failed."""

import os
from collections.abc import Generator
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and any(item.get_closest_marker(mark) for mark in MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)
