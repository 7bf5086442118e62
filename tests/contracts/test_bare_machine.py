"""The tests pass on a machine with Python, pip and make only: no Debian packages, no browser, no ``../shared``, no network."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.studio_page import find_chromium
from vitrail.data.sources.known_datasets import KNOWN_DATASETS

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"
NEEDY = [
    "tests/lab/test_results.py",  # fashion-mnist, from Debian's package or by download, and weights in ../shared
    "tests/data/sources/test_known_datasets.py::test_debians_package_is_the_published_dataset",
    "tests/data/sources/test_builtin.py",
    "tests/parity/test_real.py",  # weights and images in ../shared
    "tests/browser/test_standalone_page.py",
]

pytestmark = [pytest.mark.bare, pytest.mark.thorough]


def run_isolated(arguments: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    """Run pytest in a network and mount namespace of its own, where the packages, the browser and ../shared are hidden."""
    packages = {dataset.system_folder.parent for dataset in KNOWN_DATASETS.values() if dataset.system_folder is not None}
    hidden = [f"mount -t tmpfs none '{folder}'" for folder in (SHARED, *packages) if folder.is_dir()]
    hidden += [f"mount --bind /dev/null '{Path(binary).resolve()}'"] if (binary := find_chromium()) else []
    environment = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    script = " && ".join([*hidden, 'exec "$@"'])
    return subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script, "sh", *command],
        cwd=ROOT,
        env={**environment, "VITRAIL_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--net", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces need root and util-linux")


def test_every_test_is_collected(tmp_path: Path) -> None:
    done = run_isolated(["--collect-only"], tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    assert int(re.findall(r"(\d+) tests? collected", done.stdout)[0]) > 5000


def test_what_needs_more_is_skipped_with_one_sentence(tmp_path: Path) -> None:
    done = run_isolated(NEEDY, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:]
    reasons = re.findall(r"^SKIPPED \[\d+\] \S+: (.+)$", done.stdout, re.MULTILINE)
    for word in ("fashion-mnist", "Chromium", "weights"):
        assert any(word in reason for reason in reasons), done.stdout[-3000:]
    assert all(len(reason) < 120 for reason in reasons)
