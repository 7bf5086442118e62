"""``vitrail plan``: memory, time and cost of a recipe on a cluster, with the formulae."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.console import (
    add_row,
    format_bytes,
    format_count,
    format_duration,
    format_si,
    make_console,
    make_table,
    print_json,
)
from vitrail.cli.options import JsonOption, parse_size
from vitrail.cli.panels import cluster_option, data_option, model_option
from vitrail.cli.run_recipe import InputSizeOption, OverridesOption
from vitrail.config import override
from vitrail.errors import VitrailError

if TYPE_CHECKING:
    from rich.table import Table

    from vitrail.planning.plan import Plan
    from vitrail.planning.strategy import StrategyPlan
    from vitrail.recipes.context import RecipeContext
    from vitrail.recipes.recipe import Recipe

MAX_IMAGES = 10**12  # images, far beyond any dataset
IMAGENET = (1_281_167, 1_000)
DATASETS = {  # images and classes: of the papers, ADE20K for segmentation
    "paper-imagenet21k": (14_197_122, 21_843), "paper-jft": (303_000_000, 18_291),
    "segment": (20_210, 150), "segment-small": (20_210, 150), "segment-demo": (20_000, 2),
}  # fmt: skip
FINETUNING_RECIPES = ("finetune", "segment", "paper-finetune")
STRATEGY_TITLES = {"single": "one process", "ddp": "DDP", "fsdp": "FSDP2"}
TOTAL_FORMULA = (
    "weights + gradients + optimizer_state + ema + "
    "max(compute_copies + accumulated_grads + activations + workspace, optimizer_workspace, eval_weights)"
)
MEMORY_TITLES = {
    "weights": "weights", "gradients": "gradients", "optimizer_state": "optimiser state", "ema": "EMA weights",
    "compute_copies": "+ compute copies of weights", "accumulated_grads": "+ accumulated gradients",
    "activations": "+ activations", "workspace": "+ workspace",
    "optimizer_workspace": "or optimiser workspace", "eval_weights": "or evaluation weights",
}  # fmt: skip


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe to plan: its name, a run, or a recipe.json.")],
    nodes: Annotated[int, cluster_option(metavar="N", help="Number of nodes.")] = 1,
    gpus_per_node: Annotated[int, cluster_option(metavar="G", help="Number of GPUs per node, with one process each.")] = 8,
    gpu: Annotated[
        str, cluster_option(metavar="NAME", help="GPU model: A100, A100-40, H100, H200, L4, T4, V100, RTX4090 ...")
    ] = "A100",
    model: Annotated[
        str | None,
        model_option(metavar="NAME", help="Variant such as L/16, if the recipe allows it; to fine-tune: dinov2-s14 ..."),
    ] = None,
    image: InputSizeOption = None,
    images: Annotated[
        int | None,
        data_option(
            metavar="N",
            min=1,
            max=MAX_IMAGES,
            help="Number of training images; default: ImageNet's, or those of the recipe's paper.",
        ),
    ] = None,
    classes: Annotated[
        int | None, data_option(metavar="K", min=1, help="Number of classes; default: those of that dataset.")
    ] = None,
    settings: OverridesOption = None,
    mfu: Annotated[
        float | None,
        cluster_option(
            metavar="FRACTION",
            help="Model FLOPs utilisation: fraction of the GPUs' peak that training reaches; default: 0.35, an assumption.",
        ),
    ] = None,
    price_per_gpu_hour: Annotated[
        float | None, cluster_option(metavar="DOLLARS", help="Price of one GPU for one hour; default: an assumption.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Plan a training run on a cluster: memory per GPU, the micro-batch that fits, days and cost."""
    from vitrail.planning.accelerators import get_accelerator
    from vitrail.planning.plan import DEFAULT_MFU, Cluster, make_plan

    cluster = Cluster(nodes, gpus_per_node, get_accelerator(gpu), DEFAULT_MFU if mfu is None else mfu, price_per_gpu_hour)
    selected = override(_recipe(recipe, model, image, images, classes), settings or [])
    result = make_plan(selected, cluster)
    if json:
        print_json(_plan_json(result))
    else:
        _print_plan(result)


def _recipe(name: str, model: str | None, image: str | None, images: int | None, classes: int | None) -> "Recipe":
    from vitrail.recipes.context import RecipeContext
    from vitrail.recipes.registry import RECIPES, get_recipe

    if name not in RECIPES and os.path.exists(name):
        if any(option is not None for option in (model, image, images, classes)):
            raise VitrailError(f"{name} sets the model, image size and dataset; change them by --set, as in --set steps=1000")
        return _read_recipe(Path(name))
    context = RecipeContext()  # the embedded images, which demo trains on
    if name != "demo":
        context = RecipeContext("DATA", *DATASETS.get(name, IMAGENET), None, 3)
    num_classes = context.classes if classes is None else classes
    wanted = replace(
        context,
        num_images=context.num_images if images is None else images,
        classes=num_classes,
        class_names=tuple(map(str, range(num_classes))),
        model=model,
        image=None if image is None else parse_size(image, "--image-size"),
    )
    return get_recipe(name, _with_published(wanted, name))


def _with_published(context: "RecipeContext", recipe: str) -> "RecipeContext":
    """Return the context with the weights of a published model to initialise from, if ``--model`` names one."""
    from vitrail.data.preprocess import vit_preprocess
    from vitrail.recipes.context import InitWeights
    from vitrail.weights.catalogue import CATALOGUE, check_name

    published = CATALOGUE.get((context.model or "").lower())
    if published is None:
        if "-" in (context.model or "") and "/" not in (context.model or ""):  # like a published model's name
            check_name(context.model or "")
        return context
    if recipe not in FINETUNING_RECIPES:
        raise VitrailError(
            f"{recipe} trains from random weights, and {published.name} is a pretrained model; try finetune or paper-finetune, "
            f"or --model {published.variant}"
        )
    size = context.image or published.config.image
    weights = InitWeights(published.name, "", replace(published.config, image=size), vit_preprocess(size))
    return replace(context, model=None, init_weights=weights)


def _read_recipe(path: Path) -> "Recipe":
    from vitrail.training.run import read_recipe

    file = path / "recipe.json" if path.is_dir() else path
    if not file.is_file():
        raise VitrailError(f"{path} is not a run: it has no recipe.json; name a run, a recipe.json, or a recipe such as plain")
    return read_recipe(file)


def _memory_formulae(plan: "Plan", strategy: str) -> dict[str, str]:
    """Return the formula of each memory term for this recipe; ``vitrail.planning.memory_estimate`` explains them."""
    recipe = plan.recipe
    half, sharded = recipe.precision == "bfloat16", strategy == "fsdp"
    moments = {"adamw": "8 T", "sgd": "4 T" if recipe.optim.momentum else "0", "muon": "8 (T - M) + 4 M"}[recipe.optim.name]
    ema = "0" if recipe.ema_decay is None else "4 P"
    unsharded = {"weights": "4 P", "gradients": "4 T", "optimizer_state": moments, "ema": ema}
    special = {"8 (T - M) + 4 M": "(8 (T - M) + 4 M) / R", "0": "0"}
    formulae = {name: special.get(text, f"{text} / R") if sharded else text for name, text in unsharded.items()}
    memory = next(strategy_plan.memory for strategy_plan in plan.strategies if strategy_plan.strategy == strategy)
    return formulae | {
        "compute_copies": "4 O + 3 c B + 4 B" if sharded else "2 P" if half else "0",
        "accumulated_grads": "4 T" if memory.accumulated_grads else "0",
        "activations": "b A",
        "workspace": "b W",
        "optimizer_workspace": "20 S" if memory.optimizer_workspace else "0",
        "eval_weights": "4 P" if sharded else "0",
        "total": TOTAL_FORMULA,
    }


def _plan_json(plan: "Plan") -> dict[str, Any]:
    cluster, recipe = plan.cluster, plan.recipe
    strategies = {
        strategy_plan.strategy: {
            "max_micro_batch": strategy_plan.max_images, "micro_batch_size": strategy_plan.micro_batch_size,
            "micro_batches": strategy_plan.micro_batches, "fits": strategy_plan.fits,
            **vars(strategy_plan.memory), "total": strategy_plan.memory.total,
            "formulae": _memory_formulae(plan, strategy_plan.strategy),
        }
        for strategy_plan in plan.strategies
    }  # fmt: skip
    return {
        "recipe": recipe.name, "precision": recipe.precision, "steps": recipe.steps, "batch_size": recipe.batch_size,
        "nodes": cluster.nodes, "gpus_per_node": cluster.gpus_per_node, "world_size": cluster.world_size,
        "gpu": vars(cluster.gpu), "memory_budget": plan.memory_budget, "per_rank_batch": plan.per_rank_batch,
        "model": {**vars(plan.costs), "flops": plan.costs.flops},
        "strategies": strategies, "strategy": plan.strategy_plan.strategy, "flops": plan.total_flops, "peak": plan.peak_flops,
        "mfu": cluster.mfu, "seconds_per_step": plan.seconds_per_step, "days": plan.days, "gpu_hours": plan.gpu_hours,
        "price_per_gpu_hour": cluster.gpu_hour_price, "cost": plan.cost,
    }  # fmt: skip


def _print_plan(plan: "Plan") -> None:
    from vitrail.planning.accelerators import TERA

    screen, recipe, cluster, costs = make_console(), plan.recipe, plan.cluster, plan.costs
    gpu, world_size = cluster.gpu.name, cluster.world_size
    screen.print(_memory_table(plan))
    by_muon = f", M {costs.muon_parameters:,} updated by Muon, S {costs.largest_muon_group:,} of them of one shape"
    screen.print(
        f"P {costs.parameters:,} weights, T {costs.trainable:,} of them trained{by_muon if costs.muon_parameters else ''}"
        f"; O {costs.non_block:,} outside the blocks, B {costs.largest_block:,} in the largest block; R {world_size} ranks; "
        f"b micro-batch size; c {2 if recipe.precision == 'bfloat16' else 4} bytes per number; "
        f"A {format_bytes(costs.bytes_per_image)} activations per image, W "
        f"{format_bytes(costs.workspace_per_image)} workspace per image"
    )
    screen.print()
    for strategy_plan in plan.strategies:
        screen.print(_format_fit(strategy_plan, plan))
    screen.print()
    screen.print(f"{format_si(costs.flops, 'FLOPs')} per image = {_flops_formula(plan)}")
    screen.print(
        f"{plan.total_flops / 1e18:,.4g} exaFLOPs = that x {recipe.batch_size:,} images x {recipe.steps:,} steps\n"
        f"{plan.seconds_per_step:,.3g} s per step = FLOPs x {recipe.batch_size:,} / ({world_size} x "
        f"{plan.peak_flops / TERA:,.4g} TFLOP/s of {gpu} in "
        f"{recipe.precision} x {cluster.mfu:g} MFU)"
    )
    screen.print(f"{_format_days(plan.days)}, {_format_gpu_hours(plan)} GPU-hours", style="bold", end="")
    screen.print(f" = {plan.seconds_per_step:,.3g} s x {recipe.steps:,} x {world_size} / 3600")
    screen.print(f"{plan.cost:,.0f} dollars", style="bold", end="")
    assumed = "assumed; set yours with --price-per-gpu-hour" if cluster.price_per_gpu_hour is None else "as given"
    screen.print(f" = {_format_gpu_hours(plan)} x {cluster.gpu_hour_price:g} dollars per hour ({assumed})")
    for note in _notes(plan):
        screen.print(note)


def _memory_table(plan: "Plan") -> "Table":
    cluster, recipe = plan.cluster, plan.recipe
    columns = [cell for each in plan.strategies for cell in (f"#{STRATEGY_TITLES[each.strategy]}", "formula")]
    sheet = make_table(
        "memory per rank", *columns, title=f"{recipe.name} on {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.name}, "
        f"{recipe.steps:,} steps of {recipe.batch_size:,} images in {recipe.precision}",
    )  # fmt: skip
    formulae = {strategy_plan.strategy: _memory_formulae(plan, strategy_plan.strategy) for strategy_plan in plan.strategies}
    for name in vars(plan.strategies[0].memory):
        cells: list[str] = []
        for strategy_plan in plan.strategies:
            number = getattr(strategy_plan.memory, name)
            cells += [format_bytes(number), formulae[strategy_plan.strategy][name]] if number else ["", ""]
        if any(cells):
            add_row(sheet, MEMORY_TITLES[name], *cells)
    totals, batches = list[str](), list[str]()
    for strategy_plan in plan.strategies:
        count = strategy_plan.micro_batches
        totals += [format_bytes(strategy_plan.memory.total), ""]
        batches += [format_count(strategy_plan.micro_batch_size), f"{count} micro-batch{'' if count == 1 else 'es'}"]
    add_row(sheet, "total", *totals)
    add_row(sheet, "b, micro-batch size", *batches)
    return sheet


def _format_fit(strategy_plan: "StrategyPlan", plan: "Plan") -> str:
    name, micro_batch = STRATEGY_TITLES[strategy_plan.strategy], strategy_plan.micro_batch_size
    budget = f"{format_bytes(plan.memory_budget)}, 0.9 of {plan.cluster.gpu.name}'s memory"
    if not strategy_plan.fits:
        images = "one image" if micro_batch == 1 else f"{micro_batch:,} images"
        total = format_bytes(strategy_plan.memory.total)
        return f"{name} does not fit: {total} with {images} per micro-batch, and the budget is {budget}"
    batch = f"{plan.per_rank_batch:,} images, {'the batch' if strategy_plan.strategy == 'single' else 'the per-rank batch'}"
    if strategy_plan.micro_batches == 1:
        return f"{name} fits: {batch}, in one micro-batch; {strategy_plan.max_images:,} would fit into {budget}"
    setting = f"(--set micro_batch_size={micro_batch})"
    return f"{name} fits: {batch}, in {strategy_plan.micro_batches} micro-batches {setting} into {budget}"


def _flops_formula(plan: "Plan") -> str:
    costs, text = plan.costs, "2 x MACs forward + 4 x MACs backward"
    recomputed = f" + 2 x {format_si(costs.recomputed_macs, 'MACs')} of recomputed blocks" if costs.recomputed_macs else ""
    backward = "" if costs.backward_macs == costs.macs else f", backward through {format_si(costs.backward_macs, 'MACs')} only"
    return f"{text}{recomputed}, {format_si(costs.macs, 'MACs')}{backward}"


def _format_days(days: float) -> str:
    return f"{days:,.1f} days" if days >= 2 else format_duration(86_400 * days)


def _format_gpu_hours(plan: "Plan") -> str:
    return f"{plan.gpu_hours:,.0f}" if plan.gpu_hours >= 100 else f"{plan.gpu_hours:.3g}"


def _notes(plan: "Plan") -> list[str]:
    """List the strategy the run would choose, what would make it fit, and what the numbers leave out."""
    from vitrail.planning.strategy import settings_that_fit

    recipe, gpu, selected = plan.recipe, plan.cluster.gpu, plan.strategy_plan
    notes = []
    if len(plan.strategies) > 1:
        notes.append(f"the run would use {STRATEGY_TITLES[selected.strategy]} (parallel={recipe.parallel})")
    if not selected.fits:
        settings = settings_that_fit(recipe, plan.cluster.world_size, plan.memory_budget)
        notes.append(f"to make it fit: {', '.join([*settings, 'a smaller --model or --image-size'])}")
    if recipe.precision == "float32" and gpu.bfloat16_flops is not None and gpu.bfloat16_flops > gpu.float32_flops:
        notes.append(
            f"in bfloat16 (--set precision=bfloat16) {gpu.name}'s peak is "
            f"{gpu.bfloat16_flops / gpu.float32_flops:.3g} times as high"
        )
    notes.append(
        "the MFU is an assumption: by Table 2's core-days, the paper's H/14 reached 0.32 of a TPU's peak, its L/16 at most "
        "0.43; communication between ranks, slow data loading, evaluations and checkpoints are not modelled"
    )
    return notes
