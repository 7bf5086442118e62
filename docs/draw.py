"""Draws the figures of the README and of the docs: ``.venv/bin/python docs/draw.py``. Tests check that they are up to date.

The attention of a trained model differs in the last digits between machines, so the numbers of two figures are saved in
``pictures/tutorial.json``. ``docs/draw.py --train`` recomputes them: the tutorial's model, trained for all 1,900 steps.
"""

import io
import json
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

import vitrail
from vitrail.cli.inspect import show
from vitrail.data.sources.panes import panes
from vitrail.models.cost import cost
from vitrail.models.variants import variant
from vitrail.recipes.demo import demo
from vitrail.recipes.given import Given
from vitrail.report.drawing import Drawing, Line, Shape, Shown, Words
from vitrail.report.heat import overlay, patched, tiles, wall
from vitrail.report.pictures import sheet

PICTURES = Path(__file__).parent / "pictures"
LOOKS = PICTURES / "tutorial.json"
BOOT = 28  # the tutorial's image, by its index in fashion's test split


def inspect_svg() -> str:
    """Draw the terminal after ``vitrail inspect B/16``, with the reader's own fonts: a figure must not fetch anything."""
    screen = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, highlight=False)
    show(screen, "B/16", cost(variant("B/16")))
    offline = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    offline = offline.replace("font-family: Fira Code, monospace", "font-family: monospace")
    svg = screen.export_svg(title="vitrail inspect B/16", code_format=offline, unique_id="inspect")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def panes_sheet() -> Image.Image:
    """Draw four scenes of each class of ``panes``."""
    source = panes("train", 200)
    shown = [np.flatnonzero(source.labels == label)[:4] for label in range(len(source.names))]
    chosen = np.stack(shown, 1).ravel().tolist()
    pictures = [Image.fromarray(source.content(index)) for index in chosen]
    return sheet(pictures, [source.names[source.labels[index]] for index in chosen], columns=10, side=64)


def boot() -> Image.Image:
    content = vitrail.pictures("fashion").test.content(BOOT)
    assert isinstance(content, np.ndarray)
    return Image.fromarray(content[..., 0])


def tokens() -> Image.Image:
    """Draw equation 1: the image, its patches in a sequence, and the class token before them."""
    picture, side, gap, left, top = boot(), 34, 6, 250, 62
    shapes: list[Shape] = [Words((0, 12), "an image of 28 x 28 pixels, split into 4 x 4 patches", colour="ink")]
    shapes += [moved(shape, 0, 22) for shape in patched(picture, (4, 4), side=168).shapes]
    shapes += [
        Words((left, 12), "16 patches, row by row, of 7 x 7 = 49 numbers each", colour="ink"),
        Words((left, 26), "each times E, plus its position embedding: a token of 96 numbers"),
        Words((left + side / 2, top - 8), "class", "middle", "bad"),
        *framed((left, top, side, side), "bad"),
        Words((left + side / 2, top + side / 2 + 4), "0", "middle", "bad"),
    ]
    for number in range(16):
        row, column = divmod(number, 4)
        place = number + 1  # the class token has index 0
        x, y = left + place % 9 * (side + gap), top + place // 9 * (side + 30)
        patch = picture.crop((7 * column, 7 * row, 7 * column + 7, 7 * row + 7)).convert("RGB")
        shapes += [Shown((x, y, side, side), patch), *framed((x, y, side, side), "line")]
        shapes.append(Words((x + side / 2, y - 8), f"{place}", "middle"))
    return Drawing("from an image to 17 tokens", (left + 9 * (side + gap), 192), tuple(shapes)).picture()


def block() -> str:
    """Draw equations 2 and 3: one layer, with the shapes of the tutorial's model."""
    steps = [
        ("LN", "per token: mean 0, standard deviation 1"),
        ("MSA", "3 heads of width 32, each with 17 x 17 attention weights"),
        ("+", "residual connection"),
        ("LN", "per token"),
        ("MLP", "per token: 96 to 384, GELU, to 96"),
        ("+", "residual connection"),
    ]
    centre, high, gap, top = 90, 30, 18, 34
    shapes: list[Shape] = [
        Words((centre, 16), "17 x 96", "middle", "ink"),
        Words((centre + 130, 16), "tokens of the layer below"),
    ]
    y = top
    starts: list[int] = []
    for number, (name, said) in enumerate(steps):
        shapes += arrow(centre, y - gap + 4, y)
        if number % 3 == 0:
            starts.append(y - gap // 2)
        half = 12 if name == "+" else 44
        shapes += framed((centre - half, y, 2 * half, high), "mark" if name in ("MSA", "MLP") else "soft")
        shapes += [Words((centre, y + 20), name, "middle", "ink"), Words((centre + 130, y + 20), said)]
        if name == "+":  # the skip connection
            middle = y + high / 2
            shapes.append(Line([(centre, starts[-1]), (14, starts[-1]), (14, middle), (centre - half, middle)], "bad", 1.5))
        y += high + gap
    shapes += [*arrow(centre, y - gap + 4, y), Words((centre, y + 16), "17 x 96", "middle", "ink")]
    shapes.append(Words((centre + 130, y + 16), "tokens of the layer above"))
    return Drawing("one layer of the encoder", (500, y + 24), tuple(shapes)).svg() + "\n"


def looks() -> Image.Image:
    """Draw the attention of the class token, head by head, and its rollout."""
    found = json.loads(LOOKS.read_text())
    grey = np.array(found["attention"])  # layers, heads, patches
    heads = wall(grey.reshape(*grey.shape[:2], 4, 4), "attention of the class token", side=84)
    rolled = overlay(boot(), np.array(found["rollout"]).reshape(4, 4), "rollout over all layers", side=200)
    return beside(heads, rolled)


def places() -> Image.Image:
    """Draw the position embedding similarity, the middle of the paper's Figure 7."""
    return tiles(np.array(json.loads(LOOKS.read_text())["positions"]), "position embedding similarity", side=96).picture()


def find_looks() -> dict[str, Any]:
    """Train the tutorial's model in full, and compute its prediction and attention for the boot."""
    plain = demo(Given())
    recipe = replace(plain, model=variant("Ti/7", image=28, channels=1, classes=10, width=96, depth=4, mlp=384))
    with tempfile.TemporaryDirectory() as folder:
        result = vitrail.fit(recipe, Path(folder) / "run")
        model = vitrail.load(Path(folder) / "run")
    images = vitrail.prepare(model, [boot()])
    answer = vitrail.predict(model, [boot()])[0]
    return {
        "steps": recipe.steps,
        "top1": result["test"]["top1"],
        "prediction": [answer.label, rounded(answer.probability)],
        "attention": rounded(vitrail.explain.attention(model, images, queries=[0])[:, 0, :, 0, 1:]),
        "rollout": rounded(vitrail.explain.rollout(model, images)[0, 0, 1:]),
        "positions": rounded(vitrail.explain.position_similarity(model)),
    }


def rounded(values: Any) -> Any:
    return np.round(np.asarray(values, np.float64), 4).tolist()


def moved(shape: Shape, right: float, down: float) -> Shape:
    match shape:
        case Shown((x, y, wide, high)):
            return replace(shape, box=(x + right, y + down, wide, high))
        case Line(points):
            return replace(shape, points=[(x + right, y + down) for x, y in points])
        case _:
            return shape


def framed(box: tuple[float, float, float, float], colour: str) -> list[Shape]:
    x, y, wide, high = box
    return [Line([(x, y), (x + wide, y), (x + wide, y + high), (x, y + high), (x, y)], colour, 1.5)]


def arrow(x: float, start: float, end: float) -> list[Shape]:
    return [Line([(x, start), (x, end)], "soft", 1.5), Line([(x - 4, end - 5), (x, end), (x + 4, end - 5)], "soft", 1.5)]


def beside(*drawings: Drawing) -> Image.Image:
    pictures = [drawing.picture() for drawing in drawings]
    paper = pictures[0].getpixel((0, 0))
    assert isinstance(paper, tuple)
    whole = Image.new("RGB", (sum(each.width for each in pictures), max(each.height for each in pictures)), paper)
    left = 0
    for each in pictures:
        whole.paste(each, (left, 0))
        left += each.width
    return whole


RASTERS = {"panes.png": panes_sheet, "tokens.png": tokens, "looks.png": looks, "places.png": places}
VECTORS = {"inspect.svg": inspect_svg, "block.svg": block}

if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    if "--train" in sys.argv:
        LOOKS.write_text(json.dumps(find_looks()) + "\n")
    for name, drawn in VECTORS.items():
        (PICTURES / name).write_text(drawn())
    for name, painted in RASTERS.items():
        painted().save(PICTURES / name, optimize=True)
