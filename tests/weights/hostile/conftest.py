"""Files to damage."""

from pathlib import Path

import pytest

from tests.weights.hostile.damage import make


@pytest.fixture
def official(tmp_path: Path) -> Path:
    return make("official", tmp_path)
