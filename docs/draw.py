"""Draws the figures of the README and of the docs: ``.venv/bin/python docs/draw.py``. Tests check that they are up to date.

The attention of a trained model differs in the last digits between machines, so the numbers of two figures are saved in
``images/tutorial.json``. ``docs/draw.py --train`` recomputes them: the tutorial's model, trained for all 1,900 steps.
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
from vitrail.cli.inspect import print_cost
from vitrail.data.sources.panes.dataset import build_panes
from vitrail.models.cost import cost
from vitrail.models.variants import variant
from vitrail.plot.canvas import Figure, ImageShape, Line, Shape, Text
from vitrail.plot.heatmap import attention_grid, heatmap_grid, overlay, patch_grid
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.demo import demo
from vitrail.report.contact_sheet import contact_sheet

FIGURES_FOLDER = Path(__file__).parent / "images"
TUTORIAL_NUMBERS = FIGURES_FOLDER / "tutorial.json"
BOOT_INDEX = 28  # the tutorial's image, by its index in fashion's test split


def inspect_svg() -> str:
    """Draw the terminal after ``vitrail inspect B/16``, with the reader's own fonts: a figure must not fetch anything."""
    screen = Console(record=True, width=104, file=io.StringIO(), force_terminal=True, highlight=False)
    print_cost(screen, "B/16", cost(variant("B/16")))
    offline = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    offline = offline.replace("font-family: Fira Code, monospace", "font-family: monospace")
    svg = screen.export_svg(title="vitrail inspect B/16", code_format=offline, unique_id="inspect")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def panes_sheet() -> Image.Image:
    """Draw four scenes of each class of ``panes``."""
    dataset = build_panes("train", 200)
    per_class = [np.flatnonzero(dataset.labels == label)[:4] for label in range(len(dataset.class_names))]
    indices = np.stack(per_class, 1).ravel().tolist()
    images = [Image.fromarray(dataset.read(index)) for index in indices]
    return contact_sheet(images, [dataset.class_names[dataset.labels[index]] for index in indices], columns=10, side=64)


def boot_image() -> Image.Image:
    content = vitrail.open_dataset("fashion").test.read(BOOT_INDEX)
    assert isinstance(content, np.ndarray)
    return Image.fromarray(content[..., 0])


def tokens_figure() -> Image.Image:
    """Draw equation 1: the image, its patches in a sequence, and the class token before them."""
    image, side, gap, left, top = boot_image(), 34, 6, 280, 62
    shapes: list[Shape] = [Text((0, 12), "an image of 28 x 28 pixels, split into 4 x 4 patches", colour="ink")]
    shapes += [translate_shape(shape, 0, 22) for shape in patch_grid(image, (4, 4), side=168).shapes]
    shapes += [
        Text((left, 12), "16 patches, row by row, of 7 x 7 = 49 numbers each", colour="ink"),
        Text((left, 26), "each times E, plus its position embedding: a token of 96 numbers"),
        Text((left + side / 2, top - 8), "class", "middle", "bad"),
        *frame((left, top, side, side), "bad"),
        Text((left + side / 2, top + side / 2 + 4), "0", "middle", "bad"),
    ]
    for number in range(16):
        row, column = divmod(number, 4)
        position = number + 1  # the class token has index 0
        x, y = left + position % 9 * (side + gap), top + position // 9 * (side + 30)
        patch = image.crop((7 * column, 7 * row, 7 * column + 7, 7 * row + 7)).convert("RGB")
        shapes += [ImageShape((x, y, side, side), patch), *frame((x, y, side, side), "line")]
        shapes.append(Text((x + side / 2, y - 8), f"{position}", "middle"))
    return Figure("from an image to 17 tokens", (left + 9 * (side + gap), 192), tuple(shapes)).to_image()


def block_figure() -> str:
    """Draw equations 2 and 3: one layer, with the shapes of the tutorial's model."""
    steps = [
        ("LN", "per token: mean 0, standard deviation 1"),
        ("MSA", "3 heads of width 32, each with 17 x 17 attention weights"),
        ("+", "residual connection"),
        ("LN", "per token"),
        ("MLP", "per token: 96 to 384, GELU, to 96"),
        ("+", "residual connection"),
    ]
    centre, height, gap, top = 90, 30, 18, 34
    shapes: list[Shape] = [
        Text((centre, 16), "17 x 96", "middle", "ink"),
        Text((centre + 130, 16), "tokens of the layer below"),
    ]
    y = top
    starts: list[int] = []
    for number, (name, description) in enumerate(steps):
        shapes += arrow(centre, y - gap + 4, y)
        if number % 3 == 0:
            starts.append(y - gap // 2)
        half = 12 if name == "+" else 44
        shapes += frame((centre - half, y, 2 * half, height), "mark" if name in ("MSA", "MLP") else "soft")
        shapes += [Text((centre, y + 20), name, "middle", "ink"), Text((centre + 130, y + 20), description)]
        if name == "+":  # the skip connection
            middle = y + height / 2
            shapes.append(Line([(centre, starts[-1]), (14, starts[-1]), (14, middle), (centre - half, middle)], "bad", 1.5))
        y += height + gap
    shapes += [*arrow(centre, y - gap + 4, y), Text((centre, y + 16), "17 x 96", "middle", "ink")]
    shapes.append(Text((centre + 130, y + 16), "tokens of the layer above"))
    return Figure("one layer of the encoder", (500, y + 24), tuple(shapes)).to_svg() + "\n"


def attention_figure() -> Image.Image:
    """Draw the attention of the class token, head by head, and its rollout."""
    numbers = json.loads(TUTORIAL_NUMBERS.read_text())
    attention = np.array(numbers["attention"])  # layers, heads, patches
    heads = attention_grid(attention.reshape(*attention.shape[:2], 4, 4), "attention of the class token", side=84)
    rollout_figure = overlay(boot_image(), np.array(numbers["rollout"]).reshape(4, 4), "rollout over all layers", side=200)
    return side_by_side(heads, rollout_figure)


def positions_figure() -> Image.Image:
    """Draw the position embedding similarity, the middle of the paper's Figure 7."""
    return heatmap_grid(
        np.array(json.loads(TUTORIAL_NUMBERS.read_text())["positions"]), "position embedding similarity", side=96
    ).to_image()


def compute_tutorial_numbers() -> dict[str, Any]:
    """Train the tutorial's model in full, and compute its prediction and attention for the boot."""
    base = demo(RecipeContext())
    recipe = replace(base, model=variant("Ti/7", image=28, channels=1, classes=10, width=96, depth=4, mlp=384))
    with tempfile.TemporaryDirectory() as folder:
        result = vitrail.fit(recipe, Path(folder) / "run")
        model = vitrail.load(Path(folder) / "run")
    images = vitrail.preprocess(model, [boot_image()])
    prediction = vitrail.predict(model, [boot_image()])[0]
    return {
        "steps": recipe.steps,
        "top1": result.metrics["top1"],
        "prediction": [prediction.label, round_values(prediction.probability)],
        "attention": round_values(vitrail.explain.attention(model, images, queries=[0])[:, 0, :, 0, 1:]),
        "rollout": round_values(vitrail.explain.rollout(model, images)[0, 0, 1:]),
        "positions": round_values(vitrail.explain.position_similarity(model)),
    }


def round_values(values: Any) -> Any:
    return np.round(np.asarray(values, np.float64), 4).tolist()


def translate_shape(shape: Shape, right: float, down: float) -> Shape:
    match shape:
        case ImageShape((x, y, wide, high)):
            return replace(shape, box=(x + right, y + down, wide, high))
        case Line(points):
            return replace(shape, points=[(x + right, y + down) for x, y in points])
        case _:
            return shape


def frame(box: tuple[float, float, float, float], colour: str) -> list[Shape]:
    x, y, width, height = box
    return [Line([(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)], colour, 1.5)]


def arrow(x: float, start: float, end: float) -> list[Shape]:
    return [Line([(x, start), (x, end)], "soft", 1.5), Line([(x - 4, end - 5), (x, end), (x + 4, end - 5)], "soft", 1.5)]


def side_by_side(*figures: Figure) -> Image.Image:
    images = [drawing.to_image() for drawing in figures]
    paper = images[0].getpixel((0, 0))
    assert isinstance(paper, tuple)
    joined = Image.new("RGB", (sum(each.width for each in images), max(each.height for each in images)), paper)
    left = 0
    for each in images:
        joined.paste(each, (left, 0))
        left += each.width
    return joined


RASTERS = {
    "panes.png": panes_sheet,
    "tokens.png": tokens_figure,
    "attention.png": attention_figure,
    "positions.png": positions_figure,
}
VECTORS = {"inspect.svg": inspect_svg, "block.svg": block_figure}

if __name__ == "__main__":
    FIGURES_FOLDER.mkdir(exist_ok=True)
    if "--train" in sys.argv:
        TUTORIAL_NUMBERS.write_text(json.dumps(compute_tutorial_numbers()) + "\n")
    for name, drawn in VECTORS.items():
        (FIGURES_FOLDER / name).write_text(drawn())
    for name, painted in RASTERS.items():
        painted().save(FIGURES_FOLDER / name, optimize=True)
