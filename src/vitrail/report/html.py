"""A self-contained HTML page: no scripts, no network requests, light and dark, printable."""

from collections.abc import Iterable, Sequence

from jaxtyping import Float, Int
from torch import Tensor

from vitrail.plot.markup import escape

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root { color-scheme: light dark; --ink: #28282e; --paper: #faf9f6; --line: #d9d6cd; --soft: #6b6960; --mark: #1d5f8a;
        --bad: #a8321e; --good: #2c6e49; --bar: #7aa7c7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e6df; --paper: #1c1c20; --line: #3c3b40; --soft: #a3a099; --mark: #7fb6dc; --bad: #ef8a75; --good: #7cc79b;
          --bar: #41708f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; padding: 2rem 1.2rem;
       max-width: 68rem; }
h1 { font-size: 1.6rem; font-weight: 600; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { max-width: 44rem; } .soft { color: var(--soft); } .bad { color: var(--bad); } .good { color: var(--good); }
table { border-collapse: collapse; } .wide { overflow-x: auto; } .wide :is(th, td):first-child { min-width: 4.5rem; }
th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
         overflow-wrap: anywhere; } th { font-weight: 600; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
img { max-width: 100%; height: auto; } .bar { display: inline-block; height: .7rem; background: var(--bar); }
.headline { font-size: 2.2rem; line-height: 1.2; font-weight: 600; margin: .6rem 0 1.4rem; max-width: none; }
.headline .soft { font-size: 1rem; font-weight: 400; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 1rem 2rem; }
.shots { display: flex; flex-wrap: wrap; gap: .8rem 1.2rem; } h3 { font-size: .95rem; margin: 1.4rem 0 .4rem; }
figure { margin: 0; overflow-x: auto; } figcaption { font-weight: 600; position: sticky; left: 0; }
figcaption .soft { font-weight: 400; margin-left: .6rem; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: var(--soft); }
@media (max-width: 40rem) {
  figure > svg[style] { min-width: calc(.9 * var(--wide)); } svg:not([style]) text { font-size: 15px; }
  th, td { overflow-wrap: break-word; } .headline .soft { display: block; line-height: 1.5; } }
.matrix td { text-align: center; padding: .2rem .35rem; border: 1px solid var(--line); font-variant-numeric: tabular-nums;
             background: color-mix(in srgb, var(--bar) calc(var(--fraction) * 100%), transparent); }
.matrix th, .matrix td { overflow-wrap: normal; }
.matrix th { border: 0; padding: .2rem .5rem; } .matrix thead th { vertical-align: bottom; height: 6rem; }
.matrix thead span { writing-mode: vertical-rl; transform: rotate(180deg); }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; max-width: none; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .45em; border-radius: 2px; }
pre { overflow-x: auto; font-size: .85rem; } code { font-size: .92em; overflow-wrap: anywhere; }
"""


def html_page(title: str, parts: Iterable[str], style: str = "") -> str:
    """Build an HTML document from its parts. ``style``: CSS beyond the shared style sheet."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Build an HTML table. Cells are HTML already; a column whose name starts with ``#`` is right-aligned."""
    classes = [' class="number"' if column.startswith("#") else "" for column in columns]
    head = "".join(
        f"<th{css_class}>{escape(column.lstrip('#'))}</th>" for css_class, column in zip(classes, columns, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{css_class}>{cell}</td>" for css_class, cell in zip(classes, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>'


def matrix_table(counts: Int[Tensor, "k k"], fractions: Float[Tensor, "k k"], names: Sequence[str]) -> str:
    """Build a table of counts for every pair of classes, each cell shaded by its fraction."""
    head = "".join(f"<th><span>{escape(name)}</span></th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(
            f'<td style="--fraction:{fractions[row, column]:.3f}">{int(counts[row, column]) or ""}</td>'
            for column in range(len(names))
        )
        + "</tr>"
        for row, name in enumerate(names)
    )
    return f'<div class="wide"><table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
