"""The docs as a site: it builds without warnings, every link resolves, and it fetches nothing from outside."""

import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.contracts.doc_pages import PAGES, ROOT

DOCS = ROOT / "docs"
SOURCES = ("script", "img", "iframe", "audio", "video", "source", "embed")
ADDRESSES = {("a", "href"), ("link", "href"), ("use", "href"), ("object", "data"), *((tag, "src") for tag in SOURCES)}


@dataclass
class ParsedPage(HTMLParser):
    """Links (tag, attribute, address), anchors and styles of a page."""

    links: list[tuple[str, str, str]] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    styles: str = ""
    formulae: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.formulae += tag == "math"
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if (tag, name) in ADDRESSES and value:
                self.links.append((tag, name, value))
            if name == "style" and value:
                self.styles += value

    def handle_data(self, data: str) -> None:
        if self.get_starttag_text() == "<style>":
            self.styles += data


pytestmark = pytest.mark.thorough  # building the site takes seconds


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does: a warning is an error."""
    out = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-E", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, ParsedPage]:
    """Parse every page of the site, by file."""
    found = {}
    for file in sorted(site.rglob("*.html")):
        found[file] = ParsedPage()
        found[file].feed(file.read_text())
    return found


def test_every_page_is_built_and_in_the_navigation(site: Path, pages: dict[Path, ParsedPage]) -> None:
    front = {unquote(urlsplit(address).path) for _, _, address in pages[site / "index.html"].links}
    for page in PAGES:
        if page.is_relative_to(DOCS):
            built = str(page.relative_to(DOCS).with_suffix(".html"))
            assert (site / built).is_file(), built
            assert built in front or built == "index.html", f"{built} is not in the navigation; see docs/conf.py"


def test_every_link_resolves(site: Path, pages: dict[Path, ParsedPage]) -> None:
    for file, page in pages.items():
        for tag, _, address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            assert target.is_file(), f"{file.name}: {address}"
            if parts.fragment and target in pages and tag == "a":
                assert unquote(parts.fragment) in pages[target].anchors, f"{file.name}: {address}"


def test_nothing_is_fetched_from_outside(site: Path, pages: dict[Path, ParsedPage]) -> None:
    for file, page in pages.items():
        outside = [link for link in page.links if urlsplit(link[2]).netloc or urlsplit(link[2]).scheme not in ("", "data")]
        assert {tag for tag, _, _ in outside} <= {"a"}, f"{file.name}: {outside}"
        assert not _outside_addresses(page.styles), file.name
    for file in site.rglob("*.css"):
        assert not _outside_addresses(file.read_text()), file.name
    for file in site.rglob("*.svg"):
        assert not re.search(r"(href|src)=[\"'](https?:)?//", file.read_text()), file.name


def test_numbers_and_options_stay_on_one_line(site: Path) -> None:
    results = (site / "lab" / "positions.html").read_text()
    assert re.search(r'<td class="[^"]*whole[^"]*"><p>82.9 % ± 0.5</p>', results)
    assert re.search(r"<td[^>]*whole[^>]*><p>1-D, stem", results) is None
    assert re.search(
        r'<code class="[^"]*whole[^"]*"><span class="pre">--print-recipe</span>', (site / "reference.html").read_text()
    )


def test_formulae_are_mathml(site: Path, pages: dict[Path, ParsedPage]) -> None:
    source = (DOCS / "tutorial.md").read_text()
    prose = re.sub(r"```.*?```", "", source, flags=re.DOTALL)
    assert pages[site / "tutorial.html"].formulae == len(re.findall(r"\$\$.+?\$\$|\$.+?\$", prose, re.DOTALL))


def _outside_addresses(style: str) -> list[str]:
    """Return the addresses that a style would fetch from outside."""
    return re.findall(r"(?:url\(\s*[\"']?|@import\s+[\"'])((?:https?:)?//[^)\"']+)", style)
