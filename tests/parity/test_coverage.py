"""The page of the documentation that lists the published checkpoints Vitrail reads, against the script that counts them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.coverage import project_files, timm_models, transformers_models
from scripts.coverage.compare import Outcome
from scripts.coverage.page import list_section
from tests.reference_libraries import reference_library

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]  # as the script does
PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"


@pytest.mark.parametrize(
    ("family", "names", "run"),
    [
        ("transformers", transformers_models.list_names, transformers_models.run_model),
        ("projects", project_files.list_names, project_files.run_file),
    ],
    ids=["transformers", "projects"],
)
def test_the_page_says_what_is_read(
    family: str, names: Callable[[str], list[str]], run: Callable[[str], Outcome], tmp_path: Path
) -> None:
    for library in ("timm", "transformers"):
        reference_library(library)
    found = [run(name) for name in names("")]
    assert [outcome for outcome in found if outcome.result not in ("exact", "refused")] == []
    page = PAGE.read_text()
    assert "\n".join(list_section(found, family)) in page


@pytest.mark.slow
def test_no_architecture_of_timm_is_read_wrong() -> None:
    """Of every architecture, in a folder: exact or refused, and more than the goal of 240 exact."""
    reference_library("timm")
    found = [
        outcome
        for family in timm_models.FAMILIES
        for name in timm_models.list_names(family, "^(?!vit_(7b|5b))")  # which do not fit beside other tests
        for outcome in timm_models.run_model(family, name, ["folder"])
    ]
    results = [outcome.result for outcome in found]
    assert results.count("wrong") == 0, [outcome for outcome in found if outcome.result == "wrong"]
    assert results.count("exact") >= 240
