"""The docs match the code: every public name, command, option and field is documented, and every snippet and figure holds."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from docs.draw import FIGURES_FOLDER, RASTERS, VECTORS
from tests.cli.commands import COMMANDS, options
from tests.contracts.doc_pages import PAGES, ROOT, code_blocks, commands, prepare_folder, run_page
from tests.contracts.test_imports import LEVELS
from vitrail.augment.policy import POLICIES, Policy
from vitrail.data.preprocess import Preprocess
from vitrail.models.config import ResNetConfig, StemConfig, ViTConfig
from vitrail.models.masking_config import Masking
from vitrail.models.speedup_config import Speedups
from vitrail.models.variants import SIZES
from vitrail.recipes.recipe import Optim, Recipe, Schedule
from vitrail.recipes.registry import RECIPES

REFERENCE = (ROOT / "docs" / "reference.md").read_text()


@pytest.mark.parametrize("name", vitrail.__all__)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    assert getattr(vitrail, name) is not None
    assert f"`vitrail.{name}" in REFERENCE


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'biuld'; it offers .*build"):
        vitrail.biuld  # noqa: B018  # type: ignore[attr-defined]
    assert set(vitrail.__all__) <= set(dir(vitrail))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_is_documented(command: str) -> None:
    section = REFERENCE.split(f"### `vitrail {command}")[1].split("\n### ")[0]
    for option in options(command):
        assert option in section, f"{command} {option}"


@pytest.mark.parametrize(
    "settings", [ViTConfig, ResNetConfig, StemConfig, Policy, Preprocess, Recipe, Optim, Schedule, Masking, Speedups]
)
def test_every_field_is_documented(settings: type) -> None:
    for field in fields(settings):
        assert f"`{field.name}`" in REFERENCE
    assert all(size in REFERENCE for size in SIZES)
    assert all(f"`{name}`" in REFERENCE for name in [*POLICIES, *RECIPES])


@pytest.fixture(scope="session")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared_folder")
    prepare_folder(folder)
    return folder


RUNNABLE = [page for page in PAGES if any(block.language == "python" or commands(block) for block in code_blocks(page))]


@pytest.mark.parametrize(
    "page",
    [page if page.name == "README.md" else pytest.param(page, marks=pytest.mark.thorough) for page in RUNNABLE],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_every_page_can_be_followed(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run its snippets and commands in order, in an empty folder; a how-to in one with its photos and runs."""
    folder = tmp_path / "here"
    if page.parent.name == "howto":
        shutil.copytree(request.getfixturevalue("prepared_folder"), folder)
    else:
        folder.mkdir()
    monkeypatch.chdir(folder)
    run_page(page)


LINES = sorted({line for page in PAGES for block in code_blocks(page) for line in commands(block)})


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("make ")])
def test_every_make_target_exists(line: str) -> None:
    target = line.split()[1]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_every_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", VECTORS)
def test_vector_figures_are_up_to_date(name: str) -> None:
    assert (FIGURES_FOLDER / name).read_text() == VECTORS[name](), "run docs/draw.py"


@pytest.mark.parametrize("name", RASTERS)
def test_raster_figures_are_up_to_date(name: str) -> None:
    with Image.open(FIGURES_FOLDER / name) as samples:
        assert np.array_equal(np.asarray(samples), np.asarray(RASTERS[name]())), "run docs/draw.py"


def test_the_design_lists_the_rooms() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    assert " > ".join(" ".join(rooms) for rooms in LEVELS) in " ".join(design.split())
    table = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", design, re.MULTILINE)))
    assert table == [room for rooms in LEVELS for room in rooms]


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_golden_files_are_the_shared_ones() -> None:
    shared = ROOT.parent / "shared" / "golden"
    if not shared.is_dir():
        pytest.skip("there is no shared folder next to the project")
    for file in shared.iterdir():
        assert (ROOT / "tests" / "data" / "golden" / file.name).read_bytes() == file.read_bytes()


def test_every_dependency_is_pinned() -> None:
    """Every installed package is in the constraints."""
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
