"""Without a network, the hub times out soon; malformed names are refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.fake_hub import unreachable_hub
from tests.tiers import quick_first
from tests.weights.hostile.damage import ROOT, refusal_message


@pytest.mark.parametrize("kind", quick_first(["closed", "silent"]))
def test_an_unresponsive_hub_times_out_soon(kind: str, tmp_path: Path) -> None:
    script = (
        "from vitrail.errors import VitrailError; from vitrail.weights.load import load\n"
        "try:\n    load('hf:owner/name')\nexcept VitrailError as error:\n    print(error)"
    )
    with unreachable_hub(kind, tmp_path) as environment:
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
            env=environment,
            cwd=ROOT,
        )
    assert done.stdout == "hf:owner/name cannot be downloaded: the hub cannot be reached and the model is not in the cache\n"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "name",
        "owner/",
        "/name",
        "owner/name/more",
        "../..",
        "owner/..",
        "./name",
        "-owner/name",
        "owner/na me",
        "owner/name\n",
        "owner/name@main",
        "owner\\name",
        "https://evil.example/name",
    ],
)
def test_a_malformed_repository_name_is_refused(name: str) -> None:
    assert "a model on the hub must be written hf:owner/name, got" in refusal_message(f"hf:{name}")


SOURCES = ["", ".", "gone.npz", "gone", "x" * 5000, "a\0b.pth", "/dev/null", "\ud800.npz"]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: ascii(source)[:20])
def test_a_source_that_is_not_a_model_is_refused(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    refusal_message(source)
