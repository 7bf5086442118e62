"""Sphinx configuration of the docs, self-contained pages without network requests: ``make docs``.

The sources are plain Markdown, readable without a build. What only a built page needs is therefore here and not in them: the
navigation, and formulae as MathML, which every browser renders by itself.
"""

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri

HERE = Path(__file__).parent
NUMBER = re.compile(r"[-+]?[\d.,]+(?: ?[%MG])?(?: ± [\d.]+)?(?: points)?")
OPTION = re.compile(r"--[\w-]+(?: \S{1,8})?")

project = "Vitrail"
extensions = ["myst_parser"]
exclude_patterns = ["lab/*/**"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Vitrail"
html_static_path = ["static"]
html_css_files = ["vitrail.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_use_index = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"footer_icons": [], "top_of_page_buttons": []}

# In reading order. A page that is missing here cannot be reached, and the build warns.
HOWTO = (
    "own-images several-labels numbers segmentation detection finetune pretrain weights evaluate look-inside deploy memory "
    "own-code own-task paper own-recipe questions"
)
LAB = "variants compute shift data-scale positions cls-or-gap resolution inside"
NAVIGATION = {
    "index": ["tutorial", "howto/index", "reference", "studio", "serving", "scaling", "lab/index", "coverage", "design", "log"],
    "howto/index": HOWTO.split(),
    "lab/index": LAB.split(),
}


def navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the hidden table of contents that the side bar shows."""
    if page in NAVIGATION:
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", "", *NAVIGATION[page], "```\n"])


def link_files_directly(app: Sphinx, page: nodes.document, name: str) -> None:
    """Turn download links, such as those to the lab's files, into links that open in the browser."""
    for node in list(page.findall(download_reference)):
        if "filename" in node:
            address = relative_uri(app.builder.get_target_uri(name), f"_downloads/{node['filename']}")
            node.replace_self(nodes.reference("", "", *node.children, refuri=address, internal=True))


def keep_on_one_line(app: Sphinx, page: nodes.document, name: str) -> None:
    """Keep numbers in tables and option names on one line, however narrow the screen is."""
    for node in page.findall(lambda node: isinstance(node, nodes.entry | nodes.literal)):
        if (NUMBER if isinstance(node, nodes.entry) else OPTION).fullmatch(node.astext()):
            node["classes"].append("whole")


def render_formula(translator: Any, node: nodes.Element, display: str) -> None:
    translator.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.connect("source-read", navigation)
    app.connect("doctree-resolved", link_files_directly)
    app.connect("doctree-resolved", keep_on_one_line)
    app.add_html_math_renderer(
        "mathml",
        (lambda translator, node: render_formula(translator, node, "inline"), None),
        (lambda translator, node: render_formula(translator, node, "block"), None),
    )
