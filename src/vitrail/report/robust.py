"""Robustness page: accuracy of models under image corruptions. v versions of an image."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vitrail.data.decode import as_picture
from vitrail.evaluate.beside import Difference, differences
from vitrail.evaluate.disturb import MOST, Disturbance
from vitrail.evaluate.robust import ALL, CLEAN, Stressed
from vitrail.report.curves import LEFT, RIGHT, WIDTH, curves, key
from vitrail.report.markup import text
from vitrail.report.page import page, table
from vitrail.report.pictures import data_address

SIDE = 112  # pixels of an example image
STYLE = f"""<style>
.strip {{ display: grid; grid-template-columns: repeat({MOST + 1}, minmax(0, 1fr)); text-align: center;
          margin: 0 {RIGHT / WIDTH:.2%} 0 {LEFT / WIDTH:.2%}; }}
.strip div, .unit {{ font-size: .72rem; color: var(--soft); line-height: 1.25; padding: 0 2px; }}
.strip img {{ display: block; width: 100%; margin-bottom: 2px; }} .pixels img {{ image-rendering: pixelated; }}
th, td {{ overflow-wrap: break-word; }} .panels {{ gap: 1.8rem 2rem; }}
.unit {{ text-align: right; margin: 2px {RIGHT / WIDTH:.2%} 0 0; }}
</style>"""


def robust_page(models: Mapping[str, Stressed], notes: Sequence[str] = ()) -> str:
    """Build the page. ``results``: by model name; the first model is the one that the others are compared with."""
    return page("Robustness", _parts(models, notes))


def _parts(models: Mapping[str, Stressed], notes: Sequence[str]) -> Iterator[str]:
    first = next(iter(models.values()))
    rows, columns = first.grid
    yield STYLE + "<h1>Robustness</h1>"
    yield (
        f'<p class="soft">{text(first.data)}, {first.split}: {len(first.indices):,} images'
        + (f"; {first.left_out:,} unreadable" if first.left_out else "")
        + f"; {rows}×{columns} cells</p>"
    )
    yield from (f'<p class="soft">{text(note)}</p>' for note in (*first.notes, *notes))
    yield _answer(models)
    yield "<h2>Accuracy by severity</h2>"
    yield f"<p>{key(models)}</p>"
    yield (
        "<p>Severity 0 is the original image. Every model is evaluated on the same corrupted images; below each panel is one "
        "of them.</p>"
    )
    yield '<div class="figures panels">'
    place = 1
    for kind in first.kinds:
        yield _panel(kind, models, _shown(first.example, place, len(kind.strengths)))
        place += len(kind.strengths)
    yield "</div>"
    yield "<h2>Table</h2>" + _table(models)
    yield from _explained(first)


def _answer(models: Mapping[str, Stressed]) -> str:
    columns = ("model", "#clean accuracy", "#95 % interval", "#mean corrupted accuracy", "#95 % interval", "#retained")
    rows = []
    for name, found in models.items():
        clean, mean = found.scores[CLEAN], found.scores[ALL]
        sure = _range(clean.interval), _range(mean.interval)
        rows.append((text(name), f"{clean.mean:.1%}", sure[0], f"{mean.mean:.1%}", sure[1], f"{mean.retained:.1%}"))
    return table(columns, rows)


def _panel(kind: Disturbance, models: Mapping[str, Stressed], strip: Sequence[Image.Image]) -> str:
    lines = {
        model: [(0.0, found.clean), *((float(at), right) for at, right in enumerate(found.scores[kind.name].top1, 1))]
        for model, found in models.items()
    }
    drawn = curves(kind.title, lines, percent=True, places=MOST + 1, between=(0.0, 1.0), legend=False)
    captions = ["original", *kind.captions]
    small = max(strip[0].size) <= SIDE
    cells = "".join(
        f'<div><img alt="{text(kind.title)}" src="{data_address(picture, lossless=small)}">{text(caption)}</div>'
        for picture, caption in zip(strip, captions, strict=True)
    )
    unit = f'<div class="unit">{text(kind.unit)}</div>'
    return f'<div>{drawn}<div class="strip{" pixels" if small else ""}">{cells}</div>{unit}</div>'


def _shown(versions: UInt8[Tensor, "v c h w"], first: int, count: int) -> list[Image.Image]:
    """Return the original image, then its versions under one corruption."""
    chosen = versions[[0, *range(first, first + count)]]
    made = [as_picture(np.ascontiguousarray(one.permute(1, 2, 0).numpy())) for one in chosen]
    scale = 2 * SIDE / max(made[0].size)  # sharp on a high-resolution screen, and no larger
    if scale >= 1:
        return made
    size = (max(1, round(made[0].width * scale)), max(1, round(made[0].height * scale)))
    return [one.resize(size, Image.Resampling.LANCZOS) for one in made]


def _table(models: Mapping[str, Stressed]) -> str:
    first = next(iter(models.values()))
    apart, several = [differences(first, each) for each in models.values()], len(models) > 1
    columns = [
        "corruption",
        "model",
        *(f"#{severity}" for severity in range(1, MOST + 1)),
        "#mean",
        "#95 % interval",
        "#retained",
    ]
    columns += ["#difference in points", "#95 % interval"] if several else []
    rows = []
    for name in first.scores:
        for number, ((model, found), gaps) in enumerate(zip(models.items(), apart, strict=True)):
            score = found.scores[name]
            title = "" if number else f"<b>{text(score.title)}</b>"
            cells = [f"{right:.1%}" for right in score.top1] + [""] * (MOST - len(score.top1))
            kept = "" if name == CLEAN else f"{score.retained:.1%}"
            row = [title, text(model), *cells, f"{score.mean:.1%}", _range(score.interval), kept]
            rows.append(row + (_apart(gaps[name] if number else None) if several else []))
    return table(columns, rows)


def _apart(found: Difference | None) -> list[str]:
    """Return the difference and its interval, coloured if significant."""
    if found is None:
        return ["", ""]
    low, high = found.interval
    sense = "good" if low > 0 else "bad" if high < 0 else "soft"
    return [f'<span class="{sense}">{100 * found.difference:+.1f}</span>', f"{100 * low:+.1f} to {100 * high:+.1f}"]


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.1%} to {ends[1]:.1%}"


def _explained(first: Stressed) -> Iterator[str]:
    yield "<h2>Corruptions</h2>"
    yield (
        "<p>Noise, blur, contrast and JPEG are those of ImageNet-C (Hendrycks and Dietterich 2019) at its five severities, "
        "applied to the image after the model's own resizing and cropping. Blur radii are in pixels of a 224-pixel image and "
        "scale with the image size; noise is per pixel and JPEG blocks are eight pixels wide, so both are harsher on small "
        "images.</p>"
    )
    yield (
        f"<p>The image is divided into {first.grid[0]}×{first.grid[1]} cells. Dropped cells and the occluding block are black, "
        "the same for every model; shuffling permutes whole cells, or squares of several (Naseer et al. 2021).</p>"
    )
    yield (
        "<p>Retained: mean corrupted accuracy as a fraction of clean accuracy; random guessing retains some, too. Difference: "
        f"the mean minus that of the first model, on the same {len(first.indices):,} images. Intervals are bootstrap intervals "
        "over images; they do not cover the variation between training runs.</p>"
    )
