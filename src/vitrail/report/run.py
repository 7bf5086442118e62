"""Report of a run (``report.html``): training curves, evaluation, and how to reproduce it. k classes."""

import json
import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitrail.config import to_json
from vitrail.data.decode import as_picture
from vitrail.data.sources.source import Source
from vitrail.evaluate.accuracy import confused, confusion
from vitrail.evaluate.evaluate import Answers, Measured, summed_up
from vitrail.report.curves import curves
from vitrail.report.fewshot import fewshot_part
from vitrail.report.looked import looked_part
from vitrail.report.markup import text
from vitrail.report.masked import reconstructed
from vitrail.report.page import page, table
from vitrail.report.pictures import data_address, sheet
from vitrail.report.reliability import diagram
from vitrail.tasks.classify import marks
from vitrail.train.data import opened
from vitrail.train.recipe import Recipe
from vitrail.train.run import Run
from vitrail.train.unlabelled import NEIGHBOURS

MOST_CLASSES = 60  # rows of a confusion matrix
WORST = 24


def run_page(folder: Path) -> str:
    run = Run(folder)
    return page(f"Run {folder.name}", _parts(run, run.recipe(), run.result() or {}, run.lines()))


def _parts(run: Run, recipe: Recipe, result: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[str]:
    yield f"<h1>{text(run.folder.name)}</h1>"
    yield f'<p class="soft">recipe {text(recipe.name)} on {text(recipe.data)}</p>'
    found = _measured(run, recipe, result) if result else None
    if result:
        yield _answer(recipe, result, found)
    yield '<div class="figures">'
    yield from _curves(run, result, lines)
    yield "</div>"
    if recipe.masking is not None:
        yield from reconstructed(run.reconstructions(), recipe.masking)
    if found is not None:
        data = opened(recipe).data
        yield from _answers(data.splits[found.split], found)
        yield from looked_part(run.folder / "best", data.splits[found.split], found.answers)
        yield from fewshot_part(run.folder / "best", data, found.split, result["steps"] * recipe.batch)
    yield from _again(run, recipe, result)


def _answer(recipe: Recipe, result: dict[str, Any], found: Measured | None) -> str:
    split = result["reported_on"]
    if recipe.masking is None:
        sure = f"{_between(found, 'top1')}, " if found is not None else ""
        return _large(f"{result[split]['top1']:.2%}", f"top-1 on {split}, {sure}{_why(result)}")
    return _large(f"{result[split]['loss']:.4f}", f"loss on {split}, over masked patches, {_why(result)}")


def _large(number: str, words: str) -> str:
    return f'<p class="headline">{number} <span class="soft">{words}</span></p>'


def _curves(run: Run, result: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[str]:
    steps, on = [line for line in lines if "loss" in line], _chosen_on(result)
    seen = [line for line in lines if "validation" in line]
    yield curves("Loss", {"training": _line(steps, "loss"), on: _inner(seen, "loss")})
    right = _inner(seen, "top1") or _inner(seen, "accuracy")  # over classes, or over quantised colours
    yield curves("Accuracy", {"training": _line(steps, "accuracy"), on: right}, percent=True)
    yield curves("k-NN accuracy", {f"k = {NEIGHBOURS}": _inner(seen, "knn")}, percent=True)
    yield curves("Learning rate", {"lr": _line(steps, "lr")})
    yield curves("Gradient norm", {"before clipping": _line(steps, "grad_norm")})
    yield curves("Mean attention distance in pixels", _by_layer(seen, "distance"))
    yield curves("Attention entropy in nats", _by_layer(seen, "entropy"))
    tried = run.tried()
    if tried:
        points = [(math.log10(rate), loss) for rate, loss in zip(tried["rates"], tried["losses"], strict=True)]
        yield curves(f"Learning rate range test (suggested: {tried['lr']:g})", {"smoothed loss": points}, powers=True)


def _why(result: dict[str, Any]) -> str:
    best = result["best"]
    value = f"{best['top1']:.2%}" if "top1" in best else f"{best['loss']:.4f}"
    return f"weights of step {best['step']:,}, the best on {_chosen_on(result)} ({value})"


def _chosen_on(result: dict[str, Any]) -> str:
    return str(result.get("selected_on", "validation"))  # absent in older runs


def _line(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), float(line[name])) for line in lines if name in line]


def _inner(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(line["step"]), float(line["validation"][name])) for line in lines if name in line["validation"]]


def _by_layer(lines: list[dict[str, Any]], name: str) -> dict[str, list[tuple[float, float]]]:
    """Return the curves of a few layers from the first to the last."""
    rows = [(float(line["step"]), line["attention_stats"][name]) for line in lines if "attention_stats" in line]
    depth = len(rows[0][1]) if rows else 0
    layers = sorted({round(part * (depth - 1) / 3) for part in range(4)}) if depth else []
    return {f"layer {layer}": [(step, values[layer]) for step, values in rows] for layer in layers}


def _measured(run: Run, recipe: Recipe, result: dict[str, Any]) -> Measured | None:
    """Evaluate the predictions that the run has saved."""
    path = run.folder / "predictions.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as file:
        logits, labels, indices = (torch.from_numpy(file[name]) for name in ("logits", "labels", "indices"))
    return summed_up(recipe.data, result["reported_on"], (), Answers(logits, labels, indices))


def _between(found: Measured, name: str) -> str:
    low, high = found.interval[name]
    return f"95 % interval {low:.2%} to {high:.2%}"


def _answers(source: Source, found: Measured) -> Iterator[str]:
    names, each, answers = source.names, found.classes, found.answers
    columns = ("class", "#images", "#recall", "#precision", "#F1")
    rows = [
        (
            text(name), f"{each.support[k]:,}", _share(each.recall[k], each.support[k]),
            _share(each.precision[k], each.said[k]), _share(each.f1[k], each.support[k]),
        )
        for k, name in list(enumerate(names))[: 3 * MOST_CLASSES]
    ]  # fmt: skip
    yield "<h2>Classes</h2>" + table(columns, rows)
    yield f"<h2>Calibration</h2><p>Expected calibration error {found.ece:.2%} ({_between(found, 'ece')}).</p>"
    yield f'<div style="max-width: 32rem">{diagram("Reliability", found.reliability)}</div>'
    if len(names) <= MOST_CLASSES:
        matrix = confusion(answers.guesses, answers.labels, len(names))
        yield "<h2>Confusion matrix</h2>" + _matrix(matrix, names)
    pairs = confused(answers.guesses, answers.labels)[:10]
    mixed = [(text(names[true]), text(names[other]), f"{times:,}") for true, other, times in pairs]
    if mixed:
        yield "<h2>Most confused classes</h2>" + table(("true class", "predicted class", "#images"), mixed)
    worst = marks(answers.logits, answers.labels)["loss"].argsort(descending=True, stable=True)[:WORST]
    shown = [as_picture(source.content(int(answers.indices[row]))) for row in worst]
    captions = [_caption(names[answers.labels[row]], names[answers.guesses[row]]) for row in worst]
    picture = data_address(sheet(shown, captions, columns=8))
    yield f'<h2>Highest losses</h2><img alt="Images with the highest losses" src="{picture}">'


def _caption(true: str, said: str) -> str:
    return true if true == said else f"{true}, predicted {said}"


def _share(share: Tensor, whole: Tensor) -> str:
    return f"{share:.1%}" if whole else "&ndash;"


def _matrix(matrix: Int[Tensor, "k k"], names: tuple[str, ...]) -> str:
    """Draw the confusion matrix: rows are true classes, columns predicted ones, shaded by the fraction of the row."""
    share = matrix / matrix.sum(1, keepdim=True).clamp(min=1)
    head = "".join(f"<th><span>{text(name)}</span></th>" for name in names)
    rows = "".join(
        f"<tr><th>{text(name)}</th>"
        + "".join(
            f'<td style="--fraction:{share[true, said]:.3f}">{int(matrix[true, said]) or ""}</td>' for said in range(len(names))
        )
        + "</tr>"
        for true, name in enumerate(names)
    )
    return f'<div class="wide"><table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _again(run: Run, recipe: Recipe, result: dict[str, Any]) -> Iterator[str]:
    yield "<h2>Reproduce this run</h2>"
    start = "" if recipe.start is None else f" and the same initial weights, <code>{text(recipe.start)}</code>"
    yield f"<p>The saved recipe with the same dataset, <code>{text(recipe.data)}</code>{start}, repeats the run:</p>"
    yield f"<pre>vitrail train --recipe-from {text(shlex.quote(str(run.folder)))}</pre>"
    if recipe.masking is not None:
        named = text(shlex.quote(str(run.folder)))
        yield "<p>Its encoder is an ordinary model: fine-tune it on classes, or evaluate its features with a probe.</p>"
        yield f"<pre>vitrail finetune {named} DATA\nvitrail probe {named} DATA</pre>"
    if result:
        rows = [(text(name), text(json.dumps(value))) for name, value in result.items() if not isinstance(value, dict)]
        yield table(("result", "value"), rows)
    yield f"<details><summary>Complete recipe</summary><pre>{text_lines(to_json(recipe))}</pre></details>"


def text_lines(words: str) -> str:
    return "\n".join(text(line) for line in words.splitlines())
