"""The page around the parts: the story, the state in the address, the keyboard, who may ask."""

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page

from tests.browser.opening import Studio, look

pytestmark = pytest.mark.browser
PARTS = ("picture", "patches", "tokens", "attention", "flow", "lens", "prediction", "inside", "shapes", "run")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, studio: Studio, part: str, theme: str) -> None:
    look(page, studio.at(part=part, theme=theme))
    page.wait_for_load_state("networkidle")
    found = Axe().run(page).response["violations"]
    assert not found, [(rule["id"], [node["target"] for node in rule["nodes"]][:5]) for rule in found]
