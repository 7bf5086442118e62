"""What the docs say is there, is there; what is there, the docs say; and every snippet, command and picture holds."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from docs.draw import PICTURES, inspect_svg, panes_sheet
from tests.cli.commands import COMMANDS, options
from vitrail.augment.policy import POLICIES, Policy
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.models.faster import Faster
from vitrail.models.masking import Masking
from vitrail.models.settings import ResNetConfig, Stem, ViTConfig
from vitrail.models.variants import SIZES
from vitrail.recipes.book import RECIPES
from vitrail.train.recipe import Optim, Recipe, Schedule

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for index, text in enumerate(re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)):
            found.append((f"{page.name}-{index}", text))
    return found


@pytest.mark.parametrize("name", vitrail.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(vitrail, name) is not None
    assert f"`vitrail.{name}" in REFERENCE


def test_a_name_that_is_not_there_says_what_is() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'biuld'; it offers .*build"):
        vitrail.biuld  # noqa: B018  # type: ignore[attr-defined]
    assert set(vitrail.__all__) <= set(dir(vitrail))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(command: str) -> None:
    section = REFERENCE.split(f"### `vitrail {command}")[1].split("\n### ")[0]
    for option in options(command):
        assert option in section, f"{command} {option}"


@pytest.mark.parametrize(
    "settings", [ViTConfig, ResNetConfig, Stem, Policy, Preprocess, Recipe, Optim, Schedule, Masking, Faster]
)
def test_every_field_is_documented(settings: type) -> None:
    for field in fields(settings):
        assert f"`{field.name}`" in REFERENCE
    assert all(size in REFERENCE for size in SIZES)
    assert all(f"`{name}`" in REFERENCE for name in [*POLICIES, *RECIPES])


@pytest.mark.parametrize("snippet", [text for _, text in blocks("python")], ids=[name for name, _ in blocks("python")])
def test_every_snippet_runs(snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


LINES = [line.split("#")[0].strip() for _, text in blocks("sh") for line in text.splitlines()]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("vitrail ")])
def test_every_command_line_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(shlex.split(line)[1:]) == 0


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("make ")])
def test_every_make_target_exists(line: str) -> None:
    target = line.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_pictures_are_what_would_be_drawn_today() -> None:
    assert (PICTURES / "inspect.svg").read_text() == inspect_svg(), "run docs/draw.py"
    with Image.open(PICTURES / "panes.png") as drawn:
        assert np.array_equal(np.asarray(drawn), np.asarray(panes_sheet())), "run docs/draw.py"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_golden_files_are_the_shared_ones() -> None:
    shared = ROOT.parent / "shared" / "golden"
    if not shared.is_dir():
        pytest.skip("no shared folder beside the project")
    for file in shared.iterdir():
        assert (ROOT / "tests" / "data" / "golden" / file.name).read_bytes() == file.read_bytes()


def test_every_dependency_is_pinned() -> None:
    """Whatever is installed here came through the constraints, or is not needed."""
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert pins["torch"] == "2.13.0"
    known = {name.lower().replace("_", "-") for name in pins}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format=freeze", "--exclude-editable"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    installed = {line.split("==")[0].lower().replace("_", "-") for line in done.stdout.splitlines()}
    assert installed - known == set()
