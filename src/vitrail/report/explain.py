"""What a model sees, to look at: a page with every picture under every method, its heads, its layers, and the model itself.

Every drawing also lies beside the page as a file of its own, and the numbers behind them as ``.npz``.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitrail.evaluate.explained import Explained
from vitrail.evaluate.trust import Score, Trust
from vitrail.explain.attention import checked
from vitrail.explain.distance import Heads
from vitrail.explain.similarity import filters, position_similarity
from vitrail.models.build import Model
from vitrail.report.curves import curves
from vitrail.report.heat import filter_sheet, overlay, patched, tiles, wall
from vitrail.report.page import page, table, text, write_whole
from vitrail.report.pictures import as_file, data_address, restored

Put = Callable[[str, bytes], None]
PAGE = "index.html"
TITLES = {
    "attention": "attention of the last layer",
    "rollout": "rollout",
    "gradient_rollout": "gradient rollout",
    "relevance": "relevance (Chefer)",
    "gradcam": "Grad-CAM",
}


def write_explained(
    folder: Path, model: Model, seen: Sequence[Explained], heads: Heads | None, trusted: Sequence[Trust] = ()
) -> list[str]:
    """The files that were written, the page last."""
    written: list[str] = []

    def put(name: str, content: bytes) -> None:
        write_whole(folder / name, content)
        written.append(name)

    folder.mkdir(parents=True, exist_ok=True)
    parts = ["<h1>What the model sees</h1>"]
    for number, one in enumerate(seen):
        parts += _picture(one, f"{number:02d}-{_plain(one.file)}", model, put)
    parts += [*_trusted(trusted), "<h2>The model itself</h2>", *_model(model, heads, put)]
    put(PAGE, page("What the model sees", parts).encode())
    return written


def distance_plot(heads: Heads) -> str:
    """The paper's figure 7, right: a dot a head, its layer across, how far it looks upwards."""
    far = heads.distance.tolist()
    high = max(max(row) for row in far) or 1.0
    wide, tall, left, bottom, top = 520, 260, 52, 36, 12
    dots = []
    for layer, row in enumerate(far):
        x = left + (wide - left - 16) * (layer + 0.5) / len(far)
        dots.append(f'<text x="{x:.1f}" y="{tall - bottom + 16}" text-anchor="middle">{layer}</text>')
        for head, value in enumerate(row):
            y = tall - bottom - (tall - bottom - top) * value / high
            said = f"layer {layer}, head {head}: {value:.1f} pixels"
            dots.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" fill="var(--mark)" fill-opacity=".7"><title>{said}</title></circle>'
            )
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = tall - bottom - (tall - bottom - top) * share
        dots.append(f'<line x1="{left}" x2="{wide - 16}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        dots.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share * high:.0f}</text>')
    dots.append(f'<text x="{left + (wide - left) / 2}" y="{tall - 4}" text-anchor="middle">layer</text>')
    title = "How far heads look, in pixels"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{''.join(dots)}</svg>"
    )


def _picture(one: Explained, name: str, model: Model, put: Put) -> list[str]:
    how = model.preprocess
    assert how is not None
    (picture,) = restored(one.image[None].float(), how.mean, how.std)
    names = model.labels or tuple(str(number) for number in range(one.logits.shape[0]))
    odds = one.logits.double().softmax(dim=0)
    best = odds.argsort(descending=True)[:5].tolist()
    said = ", ".join(f"{text(names[number])} {odds[number]:.1%}" for number in best)
    grid = next(iter(one.maps.values())).shape
    drawn = {"the picture and its patches": patched(picture, (grid[0], grid[1]))}
    for method, values in one.maps.items():
        drawn[TITLES.get(method, method)] = image = overlay(picture, values.float().numpy())
        put(f"{name}-{method}.png", as_file(image, ".png"))
    heads = wall(one.heads.float().numpy())
    put(f"{name}-heads.png", as_file(heads, ".png"))
    put(f"{name}.npz", _numbers(one))
    return [
        f"<h2>{text(one.file)}</h2>",
        f"<p>It says {said}. The maps with a class in them explain <b>{text(names[one.target])}</b>.</p>",
        '<div class="shots">' + "".join(_figure(title, image) for title, image in drawn.items()) + "</div>",
        "<h3>Every head: what the answer looks at, a column a layer, a row a head</h3>",
        _image(heads, "layers and heads"),
        "<h3>What the head would say after each layer</h3>",
        _lens(one, names),
    ]


def _lens(one: Explained, names: Sequence[str]) -> str:
    rows = []
    for layer, logits in enumerate(one.lens):
        odds = logits.double().softmax(dim=0)
        first = int(odds.argmax())
        after = "before the first" if layer == 0 else str(layer - 1)
        rows.append([after, text(names[first]), f"{odds[first]:.1%}", f"{odds[one.target]:.1%}"])
    return table(["after layer", "it would say", "#with", f"#{names[one.target]}"], rows)


def _trusted(rows: Sequence[Trust]) -> list[str]:
    if not rows:
        return []
    masks = rows[0].pointing is not None
    columns = [
        "method",
        "#deletion (low is good)",
        "#insertion (high)",
        *(["#pointing (high)", "#on the object (high)"] if masks else []),
    ]
    cells = [
        [
            text(TITLES.get(row.method, row.method)),
            *(_score(one) for one in (row.deletion, row.insertion, row.pointing, row.overlap) if one),
        ]
        for row in rows
    ]
    return ["<h2>Which map to trust on this model</h2>", table(columns, cells)]


def _score(score: Score) -> str:
    return f"{score.mean:.3f} ± {score.error:.3f}"


def _model(model: Model, heads: Heads | None, put: Put) -> list[str]:
    vit = checked(model)
    parts: list[str] = []
    if heads is not None:
        plot = distance_plot(heads)
        put("distance.svg", _alone(plot).encode())
        lines = {"mean of the heads": [(float(layer), value) for layer, value in enumerate(heads.entropy.mean(dim=1).tolist())]}
        parts += [
            '<div class="figures">',
            "<figure><figcaption>How far heads look, in pixels <span class='soft'>a dot a head</span></figcaption>",
            f"{plot}</figure>",
            curves("How widely they look: entropy in nats, by layer", lines),
            "</div>",
        ]
    if vit.config.position != "none":
        places = tiles(position_similarity(vit).cpu().numpy())
        put("positions.png", as_file(places, ".png"))
        parts += ["<h3>Positions: how alike each place is to every other</h3>", _image(places, "position similarity")]
    kernels = filter_sheet(filters(vit).cpu().numpy())
    put("filters.png", as_file(kernels, ".png"))
    return [*parts, "<h3>Principal components of the patch filters</h3>", _image(kernels, "filters")]


def _numbers(one: Explained) -> bytes:
    stream = io.BytesIO()
    arrays = {name: values.float().numpy() for name, values in one.maps.items()}
    others = {
        "heads": one.heads,
        "logits": one.logits,
        "lens": one.lens,
        "norms": one.norms,
        "target": torch.tensor(one.target),
    }
    np.savez_compressed(stream, **arrays, **{name: values.numpy() for name, values in others.items()})  # type: ignore[arg-type]
    return stream.getvalue()


def _figure(title: str, image: Image.Image) -> str:
    return f"<figure><figcaption>{text(title)}</figcaption>{_image(image, title)}</figure>"


def _image(image: Image.Image, title: str) -> str:
    return f'<img src="{data_address(image, lossless=True)}" width="{image.width}" height="{image.height}" alt="{text(title)}">'


def _alone(svg: str) -> str:
    """A drawing that has no page around it brings its own colours."""
    style = "text{font:11px system-ui,sans-serif;fill:#6b6960}.grid{stroke:#d9d6cd}"
    return svg.replace("<title>", f"<style>{style}</style><title>", 1).replace("var(--mark)", "#1d5f8a")


def _plain(file: str) -> str:
    """Of a file's name what any disk can hold."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in Path(file).stem)[:60] or "picture"
