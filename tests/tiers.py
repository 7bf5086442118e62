"""The tiers of the tests: ``make test`` leaves out what is marked thorough, CI runs it."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick_first(cases: Iterable[Any], quick: int = 1) -> list[Any]:
    """Mark all cases but the first few as thorough. A tuple has the arguments of a test, anything else is its only one."""
    return [case if number < quick else thorough(case) for number, case in enumerate(cases)]


def quick_only(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Mark all cases but those named as thorough."""
    return [case if case in quick else thorough(case) for case in cases]


def thorough(case: Any) -> Any:
    """Mark one case as thorough."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough)
