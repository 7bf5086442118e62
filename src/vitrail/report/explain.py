"""What a model sees, to look at: a page with every picture under every method, its heads, its layers, and the model itself.

Every drawing of the page also lies beside it as PNG and SVG, and the numbers behind them as ``.npz``.
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
from vitrail.report.page import page, table, text, write_whole
from vitrail.report.pictures import restored
from vitrail.report.trusted import TITLES, trusted_part

PAGE = "index.html"
POOLED = {"cls": "the class token", "gap": "all patches, on average", "map": "the patches, as the pooling weighs them"}


def write_explained(
    folder: Path, model: Model, seen: Sequence[Explained], heads: Heads | None, trusted: Sequence[Trust] = ()
) -> list[str]:
    """The files that were written, the page last."""
    written: list[str] = []

    def put(name: str, content: bytes) -> None:
        write_whole(folder / name, content)
        written.append(name)

    folder.mkdir(parents=True, exist_ok=True)
    vit = checked(model)
    parts = ["<h1>What the model sees</h1>"]
    for number, one in enumerate(seen):
        parts += _picture(one, f"{number:02d}-{_plain(one.file)}", vit, put)
    parts += [*trusted_part(trusted, put), "<h2>The model itself</h2>", *_model(vit, heads, put)]
    put(PAGE, page("What the model sees", parts).encode())
    return written


def _picture(one: Explained, name: str, vit: ViT, put: Put) -> list[str]:
    how = vit.preprocess
    assert how is not None
    (picture,) = restored(one.image[None].float(), how.mean, how.std)
    asked = [(int(row), int(column)) for row, sep, column in (query.partition(",") for query in one.heads) if sep]
    maps = [figure(patched(picture, one.grid, "the picture and its patches", asked), f"{name}-patches", put)]
    for method, values in one.maps.items():
        maps.append(figure(overlay(picture, values.float().numpy(), TITLES.get(method, method)), f"{name}-{method}", put))
    put(f"{name}.npz", _packed(_numbers(one)))
    said, lens = (
        _classes(one, one.target, name, vit, put) if one.target is not None else ("It has no head, and says no class.", [])
    )
    return [
        f"<h2>{text(one.file)}</h2>",
        f"<p>{said}</p>",
        f'<div class="shots">{"".join(maps)}</div>',
        *_walls(one, name, vit, put),
        *lens,
        "<h3>How long tokens are: a few patches much longer than the others are artefacts, which registers remove</h3>",
        *_norms(one, name, vit, put),
    ]


def _classes(one: Explained, target: int, name: str, vit: ViT, put: Put) -> tuple[str, list[str]]:
    """What it says, and what it would say on the way."""
    names = vit.labels or tuple(str(number) for number in range(one.logits.shape[0]))
    best = one.odds.argsort(descending=True)[:5].tolist()
    said = ", ".join(f"{text(names[number])} {one.odds[number]:.1%}" for number in best)
    explains = f" The maps with a class in them explain <b>{text(names[target])}</b>." if one.maps else ""
    figures = f"{_lens(one, target, names)}{figure(_said(one, target, names, best), f'{name}-lens', put)}"
    return f"It says {said}.{explains}", [
        "<h3>What the head would say after each layer</h3>",
        f'<div class="figures">{figures}</div>',
    ]


def _walls(one: Explained, name: str, vit: ViT, put: Put) -> list[str]:
    parts = []
    for query, rows in one.heads.items():
        who = POOLED[vit.config.pool] if query == POOL else _query(query)
        maps = rearrange(rows[..., vit.config.prefix :].float(), "l h (y x) -> l h y x", y=one.grid[0]).numpy()
        drawing = wall(
            maps, f"Heads: what {who} looks at" if query != POOL else f"Heads, seen from {who}", one.layers, one.numbers
        )
        file = f"{name}-heads" if query == POOL else f"{name}-heads-{query.replace(',', '-')}"
        parts.append(figure(drawing, file, put, "each from its own lowest to its own highest"))
    return parts


def _query(name: str) -> str:
    return "the class token" if name == "class" else name if name.startswith("register") else f"patch {name}"


def _lens(one: Explained, target: int, names: Sequence[str]) -> str:
    rows = []
    for layer, odds in enumerate(one.lens):
        first = int(odds.argmax())
        after = "before the first" if layer == 0 else str(layer - 1)
        rows.append([after, text(names[first]), f"{odds[first]:.1%}", f"{odds[target]:.1%}"])
    return table(["after layer", "it would say", "#with", f"#{names[target]}"], rows)


def _said(one: Explained, target: int, names: Sequence[str], best: Sequence[int]) -> Drawing:
    shown = list(dict.fromkeys([target, *best]))[:5]
    unique = {number: names[number] if names.count(names[number]) == 1 else f"{names[number]} ({number})" for number in shown}
    lines = {unique[number]: list(enumerate(one.lens[:, number].tolist())) for number in shown}
    where = "blocks passed"
    return chart("How probable classes are on the way", "probability", where, lines, places=len(one.lens), low=0, percent=True)


def _norms(one: Explained, name: str, vit: ViT, put: Put) -> list[str]:
    prefix, whole = vit.config.prefix, one.norms.float()
    patches = whole[:, prefix:]
    lines = {"longest patch": patches.amax(dim=1), "median patch": patches.median(dim=1).values}
    if vit.config.has_class_token:
        lines["class token"] = whole[:, 0]
    if vit.config.registers:
        lines["registers, mean"] = whole[:, prefix - vit.config.registers : prefix].mean(dim=1)
    maps = rearrange(patches, "s (y x) -> s y x", y=one.grid[0]).numpy()
    after = ["at first", *(f"layer {number}" for number in range(len(whole) - 1))]
    points = {who: list(enumerate(values.tolist())) for who, values in lines.items()}
    plot = chart("How long tokens are, by layer", "length", "blocks passed", points, places=len(whole), low=0)
    lengths = strip(maps, after, "How long each patch is")
    return [figure(lengths, f"{name}-norms", put), figure(plot, f"{name}-lengths", put)]


def _model(vit: ViT, heads: Heads | None, put: Put) -> list[str]:
    parts: list[str] = []
    numbers: dict[str, Any] = {"filters": filters(vit).cpu().float().numpy()}
    if heads is not None:
        figures = _dots("How far heads look", "pixels", heads.distance.tolist(), "distance", put)
        figures += _dots("How widely they look: entropy", "nats", heads.entropy.tolist(), "entropy", put)
        alike = heads.similarity.cpu().float().numpy()
        names = [f"layer {layer}" for layer in range(len(alike))]
        sheet = strip(alike, names, "How alike two heads of a layer look: the cosine of their weights", (0.0, 1.0))
        parts += [f'<div class="figures">{figures}</div>', figure(sheet, "similarity", put, "a row and a column a head")]
        numbers |= {name: getattr(heads, name).cpu().float().numpy() for name in ("distance", "renormalised", "entropy")}
        numbers["similarity"] = alike
    if vit.config.position != "none":
        numbers["positions"] = position_similarity(vit).cpu().float().numpy()
        drawing = tiles(numbers["positions"], "Positions: how alike each place is to every other")
        parts.append(figure(drawing, "positions", put, "a tile a place, in it its cosine to every place"))
    sheet = filter_sheet(numbers["filters"], "Principal components of the patch filters")
    put("model.npz", _packed(numbers))
    return [*parts, figure(sheet, "filters", put, "the first of them, the largest first")]


def _dots(title: str, unit: str, values: list[list[float]], name: str, put: Put) -> str:
    """The paper's figure 7, right: a dot a head, its layer across."""
    dots = [
        (float(layer), value, f"layer {layer}, head {head}: {value:.3g} {unit}")
        for layer, row in enumerate(values)
        for head, value in enumerate(row)
    ]
    return figure(chart(title, unit, "layer", dots=dots, places=len(values), low=0), name, put, "a dot a head")


def _numbers(one: Explained) -> dict[str, Any]:
    arrays: dict[str, Any] = {name: values.float().numpy() for name, values in one.maps.items()}
    named = {"logits": one.logits, "odds": one.odds, "lens": one.lens, "norms": one.norms}
    arrays |= {name: values.float().numpy() for name, values in named.items()}
    arrays["heads"] = np.stack([rows.float().numpy() for rows in one.heads.values()])
    arrays |= {"queries": np.array(list(one.heads)), "layers": np.array(one.layers), "head_numbers": np.array(one.numbers)}
    return arrays | {"grid": np.array(one.grid), "target": np.array(-1 if one.target is None else one.target)}


def _packed(arrays: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    return stream.getvalue()


def _plain(file: str) -> str:
    """Of a file's name what any disk can hold."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in Path(file).stem)[:40] or "picture"
