"""``vitrail finetune``: fine-tune weights of any origin on your classes.

Images have the size that the weights were trained at unless ``--image-size`` says otherwise: a laptop can bear that cost, and
the position embedding stays as it is. The paper's 384 pixels are three times the work of 224; ``--recipe paper-finetune``
takes them.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.options import JsonOption, parse_size
from vitrail.cli.run_recipe import (
    AugmentOption,
    BatchSizeOption,
    CompileOption,
    DeviceOption,
    EpochsOption,
    FindLrOption,
    LrOption,
    MinutesOption,
    OutOption,
    OverridesOption,
    PrecisionOption,
    PrintRecipeOption,
    RecipeOptions,
    ResumeOption,
    RunOptions,
    SeedOption,
    TensorboardOption,
    ThreadsOption,
    WeightDecayOption,
    WorkersOption,
    recipe_context,
    resume_recipe,
    run_recipe,
)
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.models.build import Model
    from vitrail.models.config import ModelConfig, Pair
    from vitrail.recipes.context import InitWeights

PAPER_RECIPE, PAPER_SIZE = "paper-finetune", 384


def finetune(
    weights: Annotated[
        str | None,
        typer.Argument(
            metavar="WEIGHTS", help="Weights to start from: a run, a model folder, .npz, .safetensors, .pth, or hf:owner/name."
        ),
    ] = None,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="Image folder or any other labelled dataset.")] = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image-size",
            metavar="H[xW]",
            rich_help_panel="Data",
            help="Height and width of the input images in pixels; default: the size the weights were trained at.",
        ),
    ] = None,
    augment: AugmentOption = None,
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
    epochs: EpochsOption = None,
    batch_size: BatchSizeOption = None,
    lr: LrOption = None,
    weight_decay: WeightDecayOption = None,
    minutes: MinutesOption = None,
    find_lr: FindLrOption = False,
    overrides: OverridesOption = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    print_recipe: PrintRecipeOption = False,
    seed: SeedOption = None,
    precision: PrecisionOption = None,
    compile: CompileOption = False,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    workers: WorkersOption = None,
    tensorboard: TensorboardOption = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune pre-trained weights on the classes of your images."""
    from dataclasses import replace

    from vitrail.recipes.registry import get_recipe

    if epochs is not None and minutes is not None:
        raise VitrailError("--epochs and --minutes both set the number of steps; leave one of them out")
    options = RunOptions(out, print_recipe, device, threads, workers, json, tensorboard, minutes, find_lr)
    fields = RecipeOptions(overrides, epochs, batch_size, lr, weight_decay, seed, precision, compile, augment)
    notes: list[str] = []
    if resume is not None:
        selected, options = resume_recipe(resume, options, weights=weights, data=data, image_size=image, augment=augment)
        run_recipe(fields.apply(selected, None, notes), options, notes)
        return
    if weights is None or data is None:
        raise VitrailError(
            "finetune needs weights and a dataset; try vitrail finetune hf:google/vit-base-patch16-224 photos, "
            "with any published ViT file, model folder or run of yours as the weights"
        )
    model = _load_weights(weights, parse_size(image, "--image-size") if image else None, recipe, out)
    trainable_overrides = _trainable_overrides(trainable, model.config)
    context = recipe_context(data, None, None)
    selected = get_recipe(recipe, replace(context, init_weights=_init_weights(weights, model)))
    if selected.init_from is None:
        raise VitrailError(f"{recipe} trains from scratch, without weights; try --recipe finetune")
    if not json:
        _print_init(weights, model, selected.keep_head, context.classes)
    fields = replace(fields, overrides=[*trainable_overrides, *(overrides or [])])
    run_recipe(fields.apply(selected, context.num_images, notes), options, notes)


def _load_weights(weights: str, image: "Pair | None", recipe: str, out: Path | None) -> "Model":
    from vitrail.weights.load import load, quiet_loading

    if not weights.startswith("hf:") and not _exists(weights):
        hint = "WEIGHTS is a run, a model folder, an .npz, .safetensors or .pth file, or hf:owner/name"
        if re.fullmatch(r"[\w.-]+/[\w.-]+", weights) and not Path(weights).parent.is_dir():
            hint = f"if it is a model on the Hugging Face hub, write hf:{weights}"
        if out is not None and (out / "recipe.json").is_file():
            hint = f"{out} resumes without it: vitrail train --recipe-from {out}/recipe.json --out {out}"
        raise VitrailError(f"{weights} does not exist; {hint}")
    with quiet_loading():  # _print_init prints the report
        model = load(weights, image=image)
        return load(weights, image=_paper_image_size(model.config)) if recipe == PAPER_RECIPE and image is None else model


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except OSError:  # longer than any file name
        return False


def _paper_image_size(config: "ModelConfig") -> "Pair":
    """Return 384 pixels, or the nearest multiple of the patch size."""
    high, wide = getattr(config, "patch_stride", (1, 1))
    return max(round(PAPER_SIZE / high), 1) * high, max(round(PAPER_SIZE / wide), 1) * wide


def _init_weights(weights: str, model: "Model") -> "InitWeights":
    from vitrail.recipes.context import InitWeights
    from vitrail.weights.init_from import weights_hash

    assert model.preprocess is not None
    return InitWeights(weights, weights_hash(weights), model.config, model.preprocess, model.class_names)


def _trainable_overrides(trainable: str, config: "ModelConfig") -> list[str]:
    """Return the recipe overrides that ``--trainable`` stands for."""
    if trainable in ("all", "head"):
        return [f"optim.trainable={trainable}"]
    last = re.fullmatch(r"last:(\d{1,4})", trainable)
    if last is None:
        raise VitrailError(f"--trainable must be all, head or last:N, got {trainable!r}; try --trainable last:2")
    depth = getattr(config, "depth", 0)
    if not 1 <= int(last[1]) <= depth:
        problem = f"the model has {depth} blocks" if depth else "a ResNet has no blocks"
        raise VitrailError(
            f"{problem}, got --trainable {trainable}; try --trainable {f'last:{min(2, depth)}' if depth else 'head'}"
        )
    return ["optim.trainable=blocks", f"optim.trainable_blocks={last[1]}"]


def _print_init(weights: str, model: "Model", head_kept: bool, classes: int) -> None:
    head = "with their head, since the classes are the same" if head_kept else f"with a new head for {classes} classes"
    typer.echo(f"init      {weights}: {model.load_report.origin} weights {head}", err=True)
    for line in model.load_report.lines()[1:]:
        typer.echo(f"          {line}", err=True)
