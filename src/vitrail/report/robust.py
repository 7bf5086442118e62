"""How much of their accuracy models keep when pictures are disturbed: one self-contained page. v versions of a picture."""

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
from vitrail.report.page import page, table, text
from vitrail.report.pictures import data_address

SIDE = 112  # pixels that a picture of a strip is shown in
STYLE = f"""<style>
.strip {{ display: grid; grid-template-columns: repeat({MOST + 1}, minmax(0, 1fr)); text-align: center;
          margin: 0 {RIGHT / WIDTH:.2%} 0 {LEFT / WIDTH:.2%}; }}
.strip div, .unit {{ font-size: .72rem; color: var(--soft); line-height: 1.25; padding: 0 2px; }}
.strip img {{ display: block; width: 100%; margin-bottom: 2px; }} .pixels img {{ image-rendering: pixelated; }}
th, td {{ overflow-wrap: break-word; }} .panels {{ gap: 1.8rem 2rem; }}
.unit {{ text-align: right; margin: 2px {RIGHT / WIDTH:.2%} 0 0; }}
</style>"""


def robust_page(models: Mapping[str, Stressed], notes: Sequence[str] = ()) -> str:
    """``models``: what was found, by the name that each goes by; the first is what the others are compared with."""
    return page("Robustness", _parts(models, notes))


def _parts(models: Mapping[str, Stressed], notes: Sequence[str]) -> Iterator[str]:
    first = next(iter(models.values()))
    rows, columns = first.grid
    yield STYLE + "<h1>Robustness</h1>"
    yield (
        f'<p class="soft">{text(first.data)}, {first.split}: {len(first.indices):,} pictures'
        + (f"; {first.left_out:,} left out, as they cannot be read" if first.left_out else "")
        + f"; cells of {rows}×{columns}</p>"
    )
    yield from (f'<p class="soft">{text(note)}</p>' for note in (*first.notes, *notes))
    yield _answer(models)
    yield "<h2>Accuracy by severity</h2>"
    yield f"<p>{key(models)}</p>"
    yield (
        "<p>Severity 0 is the picture as it is. Every model sees the same disturbed pictures; below each panel, one of "
        "them.</p>"
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
    columns = ("model", "#undisturbed", "#95 % interval", "#mean of all disturbances", "#95 % interval", "#kept of it")
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
    captions = ["as it is", *kind.captions]
    small = max(strip[0].size) <= SIDE
    cells = "".join(
        f'<div><img alt="{text(kind.title)}" src="{data_address(picture, lossless=small)}">{text(caption)}</div>'
        for picture, caption in zip(strip, captions, strict=True)
    )
    unit = f'<div class="unit">{text(kind.unit)}</div>'
    return f'<div>{drawn}<div class="strip{" pixels" if small else ""}">{cells}</div>{unit}</div>'


def _shown(versions: UInt8[Tensor, "v c h w"], first: int, count: int) -> list[Image.Image]:
    """The picture as it is, then under one disturbance."""
    chosen = versions[[0, *range(first, first + count)]]
    made = [as_picture(np.ascontiguousarray(one.permute(1, 2, 0).numpy())) for one in chosen]
    scale = 2 * SIDE / max(made[0].size)  # sharp on a fine screen, and no larger
    if scale >= 1:
        return made
    size = (max(1, round(made[0].width * scale)), max(1, round(made[0].height * scale)))
    return [one.resize(size, Image.Resampling.LANCZOS) for one in made]


def _table(models: Mapping[str, Stressed]) -> str:
    first = next(iter(models.values()))
    apart, several = [differences(first, each) for each in models.values()], len(models) > 1
    columns = ["disturbance", "model", *(f"#{severity}" for severity in range(1, MOST + 1)), "#mean", "#95 % interval", "#kept"]
    columns += ["#points more", "#95 % interval"] if several else []
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
    """Coloured where chance alone would hardly make it."""
    if found is None:
        return ["", ""]
    low, high = found.interval
    sense = "good" if low > 0 else "bad" if high < 0 else "soft"
    return [f'<span class="{sense}">{100 * found.difference:+.1f}</span>', f"{100 * low:+.1f} to {100 * high:+.1f}"]


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.1%} to {ends[1]:.1%}"


def _explained(first: Stressed) -> Iterator[str]:
    yield "<h2>What was done to the pictures</h2>"
    yield (
        "<p>Noise, blur, contrast and JPEG are those of ImageNet-C (Hendrycks and Dietterich 2019) in its five severities, on "
        "the picture as the model's own preprocessing cuts and resizes it. A blur is counted in pixels of a picture of 224 and "
        "shrinks with it; noise is drawn for each pixel and JPEG's blocks are eight pixels wide, so both are harsher on small "
        "pictures.</p>"
    )
    yield (
        f"<p>The picture is cut into {first.grid[0]}×{first.grid[1]} cells. Dropped cells and the block of an occlusion are "
        "black, for every model alike; shuffled are whole cells, or squares of several (Naseer et al. 2021).</p>"
    )
    yield (
        "<p>Kept is the mean as a share of the accuracy without disturbance; to guess among the classes keeps something, too. "
        f"Points more: the mean less that of the first model, on the same {len(first.indices):,} pictures. Intervals are of "
        "the bootstrap over pictures; they do not know how much another training run would differ.</p>"
    )
