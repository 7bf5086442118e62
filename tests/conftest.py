"""In CI a parity or browser test that is skipped has failed: nobody would notice otherwise."""

import os
from collections.abc import Generator

import pytest
import torch

MUST_RUN = ("parity", "browser")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and any(item.get_closest_marker(mark) for mark in MUST_RUN):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)
