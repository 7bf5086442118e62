"""In CI, a skipped parity or browser test is a failure."""

from pathlib import Path

import pytest

from tests import conftest
from tests.tiers import quick_first

ROOT = Path(__file__).parents[2]
APART = [part for plugin in ("cacheprovider", "faulthandler", "xdist") for part in ("-p", f"no:{plugin}")]


@pytest.mark.parametrize(
    ("ci", "mark", "code"), quick_first([("true", "parity", 1), ("false", "parity", 0), ("true", "slow", 0)])
)
def test_a_skipped_parity_test_fails_only_in_ci(
    ci: str, mark: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_x.py").write_text(f"import pytest\n@pytest.mark.{mark}\ndef test_x(): pytest.skip('no peer')\n")
    monkeypatch.setenv("CI", ci)
    options = ["-q", "-c", str(ROOT / "pyproject.toml"), "--no-shape-checks", "--import-mode=importlib", *APART]
    assert pytest.main([*options, str(tmp_path / "test_x.py")], plugins=[conftest]) == code
