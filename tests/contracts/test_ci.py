"""In CI, a skipped parity or browser test is a failure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("ci", "mark", "code"), [("true", "parity", 1), ("false", "parity", 0), ("true", "slow", 0)])
def test_a_skipped_parity_test_fails_only_in_ci(ci: str, mark: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(f"import pytest\n@pytest.mark.{mark}\ndef test_x(): pytest.skip('no peer')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "-p", "tests.conftest", tmp_path / "test_x.py"],
        cwd=ROOT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
