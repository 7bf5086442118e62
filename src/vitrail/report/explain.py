"""Explanation page: saliency maps of every image by every method, attention heads, logit lens, and the model's weights.

Every figure of the page is also written as PNG and SVG, and its numbers as ``.npz``.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from einops import rearrange

from vitrail.evaluate.explained import POOL, Explained
from vitrail.evaluate.trust import Trust
from vitrail.explain.attention import checked
from vitrail.explain.distance import Heads
from vitrail.explain.similarity import filters, position_similarity
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.report.chart import chart
from vitrail.report.drawing import Drawing
from vitrail.report.figures import Put, figure
from vitrail.report.heat import filter_sheet, overlay, patched, strip, tiles, wall
from vitrail.report.markup import text
from vitrail.report.page import page, table, write_whole
from vitrail.report.pictures import restored
from vitrail.report.trusted import TITLES, trusted_part

PAGE = "index.html"
POOLED = {"cls": "the class token", "gap": "all patches, averaged", "map": "the patches, weighted by the attention pooling"}


def write_explained(
    folder: Path, model: Model, seen: Sequence[Explained], heads: Heads | None, trusted: Sequence[Trust] = ()
) -> list[str]:
    """Write the page with its figures and arrays, and return the file names, the page last."""
    written: list[str] = []

    def put(name: str, content: bytes) -> None:
        write_whole(folder / name, content)
        written.append(name)

    folder.mkdir(parents=True, exist_ok=True)
    vit = checked(model)
    parts = ["<h1>Explanations</h1>"]
    for number, one in enumerate(seen):
        parts += _picture(one, f"{number:02d}-{_plain(one.file)}", vit, put)
    parts += [*trusted_part(trusted, put), "<h2>The model</h2>", *_model(vit, heads, put)]
    put(PAGE, page("Explanations", parts).encode())
    return written


def _picture(one: Explained, name: str, vit: ViT, put: Put) -> list[str]:
    how = vit.preprocess
    assert how is not None
    (picture,) = restored(one.image[None].float(), how.mean, how.std)
    asked = [(int(row), int(column)) for row, sep, column in (query.partition(",") for query in one.heads) if sep]
    maps = [figure(patched(picture, one.grid, "image and patches", asked), f"{name}-patches", put)]
    for method, values in one.maps.items():
        maps.append(figure(overlay(picture, values.float().numpy(), TITLES.get(method, method)), f"{name}-{method}", put))
    put(f"{name}.npz", _packed(_numbers(one)))
    said, lens = (
        _classes(one, one.target, name, vit, put)
        if one.target is not None
        else ("The model has no classifier, and predicts no class.", [])
    )
    return [
        f"<h2>{text(one.file)}</h2>",
        f"<p>{said}</p>",
        f'<div class="shots">{"".join(maps)}</div>',
        *_walls(one, name, vit, put),
        *lens,
        "<h3>Token norms: a few patches of much larger norm than the others are artefacts, which registers remove</h3>",
        *_norms(one, name, vit, put),
    ]


def _classes(one: Explained, target: int, name: str, vit: ViT, put: Put) -> tuple[str, list[str]]:
    """Describe the prediction, and the logit lens after each layer."""
    names = vit.labels or tuple(str(number) for number in range(one.logits.shape[0]))
    best = one.odds.argsort(descending=True)[:5].tolist()
    said = ", ".join(f"{text(names[number])} {one.odds[number]:.1%}" for number in best)
    explains = f" The class-specific maps explain <b>{text(names[target])}</b>." if one.maps else ""
    figures = f"{_lens(one, target, names)}{figure(_said(one, target, names, best), f'{name}-lens', put)}"
    return f"Prediction: {said}.{explains}", [
        "<h3>Logit lens: the classifier applied after each layer</h3>",
        f'<div class="figures">{figures}</div>',
    ]


def _walls(one: Explained, name: str, vit: ViT, put: Put) -> list[str]:
    parts = []
    for query, rows in one.heads.items():
        who = POOLED[vit.config.pool] if query == POOL else _query(query)
        maps = rearrange(rows[..., vit.config.prefix :].float(), "l h (y x) -> l h y x", y=one.grid[0]).numpy()
        drawing = wall(
            maps, f"Attention of {who}" if query != POOL else f"Attention heads, query: {who}", one.layers, one.numbers
        )
        file = f"{name}-heads" if query == POOL else f"{name}-heads-{query.replace(',', '-')}"
        parts.append(figure(drawing, file, put, "each scaled to its own minimum and maximum"))
    return parts


def _query(name: str) -> str:
    return "the class token" if name == "class" else name if name.startswith("register") else f"patch {name}"


def _lens(one: Explained, target: int, names: Sequence[str]) -> str:
    rows = []
    for layer, odds in enumerate(one.lens):
        first = int(odds.argmax())
        after = "input" if layer == 0 else str(layer - 1)
        rows.append([after, text(names[first]), f"{odds[first]:.1%}", f"{odds[target]:.1%}"])
    return table(["after layer", "prediction", "#probability", f"#{names[target]}"], rows)


def _said(one: Explained, target: int, names: Sequence[str], best: Sequence[int]) -> Drawing:
    shown = list(dict.fromkeys([target, *best]))[:5]
    unique = {number: names[number] if names.count(names[number]) == 1 else f"{names[number]} ({number})" for number in shown}
    lines = {unique[number]: list(enumerate(one.lens[:, number].tolist())) for number in shown}
    where = "blocks"
    return chart("Class probabilities by layer", "probability", where, lines, places=len(one.lens), low=0, percent=True)


def _norms(one: Explained, name: str, vit: ViT, put: Put) -> list[str]:
    prefix, whole = vit.config.prefix, one.norms.float()
    patches = whole[:, prefix:]
    lines = {"largest patch": patches.amax(dim=1), "median patch": patches.median(dim=1).values}
    if vit.config.has_class_token:
        lines["class token"] = whole[:, 0]
    if vit.config.registers:
        lines["registers, mean"] = whole[:, prefix - vit.config.registers : prefix].mean(dim=1)
    maps = rearrange(patches, "s (y x) -> s y x", y=one.grid[0]).numpy()
    after = ["input", *(f"layer {number}" for number in range(len(whole) - 1))]
    points = {who: list(enumerate(values.tolist())) for who, values in lines.items()}
    plot = chart("Token norms by layer", "norm", "blocks", points, places=len(whole), low=0)
    lengths = strip(maps, after, "Norm of each patch token")
    return [figure(lengths, f"{name}-norms", put), figure(plot, f"{name}-lengths", put)]


def _model(vit: ViT, heads: Heads | None, put: Put) -> list[str]:
    parts: list[str] = []
    numbers: dict[str, Any] = {"filters": filters(vit).cpu().float().numpy()}
    if heads is not None:
        figures = _dots("Mean attention distance", "pixels", heads.distance.tolist(), "distance", put)
        figures += _dots("Attention entropy", "nats", heads.entropy.tolist(), "entropy", put)
        alike = heads.similarity.cpu().float().numpy()
        names = [f"layer {layer}" for layer in range(len(alike))]
        sheet = strip(alike, names, "Similarity of the heads of a layer: cosine of their attention weights", (0.0, 1.0))
        parts += [f'<div class="figures">{figures}</div>', figure(sheet, "similarity", put, "one row and one column per head")]
        numbers |= {name: getattr(heads, name).cpu().float().numpy() for name in ("distance", "renormalised", "entropy")}
        numbers["similarity"] = alike
    if vit.config.position != "none":
        numbers["positions"] = position_similarity(vit).cpu().float().numpy()
        drawing = tiles(numbers["positions"], "Position embedding similarity")
        parts.append(figure(drawing, "positions", put, "one tile per position: its cosine to every position"))
    sheet = filter_sheet(numbers["filters"], "Principal components of the patch filters")
    put("model.npz", _packed(numbers))
    return [*parts, figure(sheet, "filters", put, "the first components, by decreasing variance")]


def _dots(title: str, unit: str, values: list[list[float]], name: str, put: Put) -> str:
    """Draw the paper's Figure 7, right: one dot per head, by layer."""
    dots = [
        (float(layer), value, f"layer {layer}, head {head}: {value:.3g} {unit}")
        for layer, row in enumerate(values)
        for head, value in enumerate(row)
    ]
    return figure(chart(title, unit, "layer", dots=dots, places=len(values), low=0), name, put, "one dot per head")


def _numbers(one: Explained) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: values.float().numpy() for name, values in one.maps.items()}
    named = {"logits": one.logits, "probabilities": one.odds, "lens": one.lens, "norms": one.norms}
    arrays |= {name: values.float().numpy() for name, values in named.items()}
    arrays["heads"] = np.stack([rows.float().numpy() for rows in one.heads.values()])
    arrays |= {"queries": np.array(list(one.heads)), "layers": np.array(one.layers), "head_numbers": np.array(one.numbers)}
    return arrays | {"grid": np.array(one.grid), "target": np.array(-1 if one.target is None else one.target)}


def _packed(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _plain(file: str) -> str:
    """Return a file name reduced to characters that every file system accepts."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in Path(file).stem)[:40] or "image"
