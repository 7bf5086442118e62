"""Files to damage."""

from pathlib import Path

import pytest

from tests.weights.hostile.damage import save_small


@pytest.fixture
def official(tmp_path: Path) -> Path:
    return save_small("official", tmp_path)
