"""``vitrail finetune``: fine-tune weights of any origin on your classes.

Images have the size that the weights were trained at unless ``--image`` says otherwise: a laptop can bear that cost, and
the position embedding stays as it is. The paper's 384 pixels are three times the work of 224; ``--recipe paper-finetune``
takes them.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.fitting import (
    Asked,
    Device,
    FindLr,
    Minutes,
    Out,
    Overrides,
    Show,
    Tensorboard,
    Threads,
    Workers,
    carry_out,
    given,
)
from vitrail.cli.options import Json, pair
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.models.build import Model
    from vitrail.models.settings import ModelConfig, Pair
    from vitrail.recipes.given import Start

PAPER, PAPER_SIZE = "paper-finetune", 384


def finetune(
    weights: Annotated[
        str,
        typer.Argument(
            metavar="WEIGHTS", help="Weights to start from: a run, a model folder, .npz, .safetensors, .pth, or hf:owner/name."
        ),
    ],
    data: Annotated[str, typer.Argument(metavar="DATA", help="Image folder or any other labelled dataset.")],
    image: Annotated[
        str | None,
        typer.Option(
            metavar="H[xW]",
            rich_help_panel="Data",
            help="Height and width of the input images in pixels; default: the size the weights were trained at.",
        ),
    ] = None,
    trainable: Annotated[
        str,
        typer.Option(
            metavar="all|last:N|head",
            rich_help_panel="Model",
            help="Parameters to train: all, the last N blocks with the head, or the head alone.",
        ),
    ] = "all",
    recipe: Annotated[
        str, typer.Option(rich_help_panel="Optimisation", help="Recipe to train with: finetune or paper-finetune.")
    ] = "finetune",
    settings: Overrides = None,
    out: Out = None,
    show: Show = False,
    device: Device = "auto",
    threads: Threads = None,
    workers: Workers = None,
    minutes: Minutes = None,
    find_lr: FindLr = False,
    tensorboard: Tensorboard = False,
    json: Json = False,
) -> None:
    """Fine-tune pre-trained weights on the classes of your images."""
    from dataclasses import replace

    from vitrail.config import override
    from vitrail.recipes.book import recipe as by_name

    model = _read(weights, pair(image, "--image") if image else None, recipe, out)
    frozen = _frozen(trainable, model.config)
    known = given(data, None, None)
    chosen = by_name(recipe, replace(known, start=_start(weights, model)))
    if chosen.start is None:
        raise VitrailError(f"{recipe} trains from scratch, without weights; try --recipe finetune")
    if not json:
        _tell(weights, model, chosen.keep_head, known.classes)
    asked = Asked(out, show, device, threads, workers, json, tensorboard, minutes, find_lr)
    carry_out(override(chosen, [*frozen, *(settings or [])]), asked)


def _read(weights: str, image: "Pair | None", recipe: str, out: Path | None) -> "Model":
    from vitrail.weights.load import load, untold

    if not weights.startswith("hf:") and not _exists(weights):
        remedy = "WEIGHTS is a run, a model folder, an .npz, .safetensors or .pth file, or hf:owner/name"
        if out is not None and (out / "recipe.json").is_file():
            remedy = f"{out} resumes without it: vitrail train --recipe-from {out}/recipe.json --out {out}"
        raise VitrailError(f"{weights} does not exist; {remedy}")
    with untold():  # _tell prints the report
        model = load(weights, image=image)
        return load(weights, image=_papers(model.config)) if recipe == PAPER and image is None else model


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except OSError:  # longer than any file name
        return False


def _papers(config: "ModelConfig") -> "Pair":
    """Return 384 pixels, or the nearest multiple of the patch size."""
    high, wide = getattr(config, "stride", (1, 1))
    return max(round(PAPER_SIZE / high), 1) * high, max(round(PAPER_SIZE / wide), 1) * wide


def _start(weights: str, model: "Model") -> "Start":
    from vitrail.recipes.given import Start
    from vitrail.weights.start import fingerprint

    assert model.preprocess is not None
    return Start(weights, fingerprint(weights), model.config, model.preprocess, model.labels)


def _frozen(train: str, config: "ModelConfig") -> list[str]:
    """Return the recipe overrides that ``--trainable`` stands for."""
    if train in ("all", "head"):
        return [f"optim.train={train}"]
    last = re.fullmatch(r"last:(\d{1,4})", train)
    if last is None:
        raise VitrailError(f"--trainable must be all, head or last:N, got {train!r}; try --trainable last:2")
    depth = getattr(config, "depth", 0)
    if not 1 <= int(last[1]) <= depth:
        has = f"the model has {depth} blocks" if depth else "a ResNet has no blocks"
        raise VitrailError(f"{has}, got --trainable {train}; try --trainable {f'last:{min(2, depth)}' if depth else 'head'}")
    return ["optim.train=blocks", f"optim.blocks={last[1]}"]


def _tell(weights: str, model: "Model", kept: bool, classes: int) -> None:
    head = "with their head, since the classes are the same" if kept else f"with a new head for {classes} classes"
    typer.echo(f"init      {weights}: {model.report.origin} weights {head}", err=True)
    for line in model.report.lines()[1:]:
        typer.echo(f"          {line}", err=True)
