"""``report.html``: how a run went, what came of it, and how to do it again. One self-contained page. k classes."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from vitrail.config import to_json
from vitrail.data.check import usable
from vitrail.data.decode import as_picture
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Source
from vitrail.data.sources.split import Shares
from vitrail.report.curves import curves
from vitrail.report.page import page, table, text
from vitrail.report.pictures import data_address, sheet
from vitrail.train.recipe import Recipe
from vitrail.train.run import Run

MOST_CLASSES = 60  # that a confusion matrix can show
WORST = 24


def run_page(folder: Path) -> str:
    run = Run(folder)
    return page(f"Run {folder.name}", _parts(run, run.recipe(), run.result() or {}, run.lines()))


def _parts(run: Run, recipe: Recipe, result: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[str]:
    yield f"<h1>{text(run.folder.name)}</h1>"
    yield f'<p class="soft">recipe {text(recipe.name)} on {text(recipe.data)}</p>'
    if result:
        split = result["reported_on"]
        yield f'<p class="answer">{result[split]["top1"]:.2%} <span class="soft">top-1 on {split}, {_why(result)}</span></p>'
    steps = [line for line in lines if "loss" in line]
    seen = [line for line in lines if "validation" in line]
    yield '<div class="figures">'
    yield curves("Loss", {"training": _line(steps, "loss"), "validation": _inner(seen, "loss")})
    yield curves("Accuracy", {"training": _line(steps, "accuracy"), "validation": _inner(seen, "top1")}, percent=True)
    yield curves("Learning rate", {"lr": _line(steps, "lr")})
    yield curves("Norm of the gradient", {"before clipping": _line(steps, "gradient")})
    tried = run.tried()
    if tried:
        points = [(math.log10(rate), loss) for rate, loss in zip(tried["rates"], tried["losses"], strict=True)]
        yield curves(f"Loss by learning rate (range test: {tried['lr']:g})", {"smoothed loss": points}, powers=True)
    yield "</div>"
    found = _predictions(run)
    if result and found is not None:
        data = usable(pictures(recipe.data, shares=Shares(recipe.validation, recipe.test))).data
        yield from _answers(data.splits[result["reported_on"]], *found)
    yield from _again(recipe, result)


def _why(result: dict[str, Any]) -> str:
    best = result["best"]
    return f"with the weights of step {best['step']:,}, the best on validation ({best['top1']:.2%})"


def _line(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), float(line[name])) for line in lines if name in line]


def _inner(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), float(line["validation"][name])) for line in lines if name in line["validation"]]


def _predictions(run: Run) -> tuple[ndarray, ndarray, ndarray] | None:
    path = run.folder / "predictions.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        return file["logits"].astype(np.float64), file["labels"], file["indices"]


def _answers(source: Source, logits: ndarray, labels: ndarray, indices: ndarray) -> Iterator[str]:
    names, guesses = source.names, logits.argmax(1)
    matrix = np.zeros((len(names), len(names)), np.int64)
    np.add.at(matrix, (labels, guesses), 1)
    right, have, said = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    rows = [
        (text(name), f"{have[k]:,}", _share(right[k], have[k]), _share(right[k], said[k]))
        for k, name in list(enumerate(names))[: 3 * MOST_CLASSES]
    ]
    yield "<h2>Classes</h2>" + table(("class", "#pictures", "#found of them (recall)", "#right when said (precision)"), rows)
    if len(names) <= MOST_CLASSES:
        yield "<h2>What was taken for what</h2>" + _matrix(matrix, names)
    wrong = matrix - np.diag(right)
    pairs = [divmod(int(place), len(names)) for place in np.argsort(-wrong, axis=None)[:10]]
    mixed = [(text(names[true]), text(names[other]), f"{wrong[true, other]:,}") for true, other in pairs if wrong[true, other]]
    if mixed:
        yield "<h2>Most confused</h2>" + table(("is", "was taken for", "#times"), mixed)
    losses = np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(labels)), labels]
    worst = np.argsort(-losses, kind="stable")[:WORST]
    shown = [as_picture(source.content(int(indices[row]))) for row in worst]
    captions = [_caption(names[labels[row]], names[guesses[row]]) for row in worst]
    picture = data_address(sheet(shown, captions, columns=8))
    yield f'<h2>Highest losses</h2><img alt="The pictures with the highest losses" src="{picture}">'


def _caption(true: str, said: str) -> str:
    return true if true == said else f"{true}, not {said}"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "&ndash;"


def _matrix(matrix: ndarray, names: tuple[str, ...]) -> str:
    """Rows are what is shown, columns what was said; darker is more of the row."""
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    head = "".join(f"<th><span>{text(name)}</span></th>" for name in names)
    rows = "".join(
        f"<tr><th>{text(name)}</th>"
        + "".join(f'<td style="--share:{share[true, said]:.3f}">{matrix[true, said] or ""}</td>' for said in range(len(names)))
        + "</tr>"
        for true, name in enumerate(names)
    )
    return f'<div class="wide"><table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _again(recipe: Recipe, result: dict[str, Any]) -> Iterator[str]:
    yield "<h2>How to do it again</h2>"
    yield "<p>The run's <code>recipe.json</code> is all it takes, on the same data:</p>"
    yield "<pre>vitrail train --again recipe.json</pre>"
    if result:
        rows = [(text(name), text(json.dumps(value))) for name, value in result.items() if not isinstance(value, dict)]
        yield table(("what", "value"), rows)
    yield f"<details><summary>The whole recipe</summary><pre>{text_lines(to_json(recipe))}</pre></details>"


def text_lines(words: str) -> str:
    return "\n".join(text(line) for line in words.splitlines())
