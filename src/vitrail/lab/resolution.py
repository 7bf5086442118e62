"""``vitrail lab resolution``: fine-tuning at higher resolution, with the position table interpolated in 2-D or reinitialised.

Trained at low resolution, then fine-tuned at the full image size with the same patch size (Dosovitskiy et al. 2021, 3.2).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from vitrail.data.loader import build_eval_loader
from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult, format_percent, get_scores, group_by
from vitrail.lab.small_recipe import MUON, STEPS, dataset_name, dataset_shape, patch_side, small_recipe, small_vit
from vitrail.lab.summaries import difference_cell, mean_score, paired_difference, score_cell, scores_json, seed_plot
from vitrail.lab.trials import JobResult, TrainingJob
from vitrail.models.config import Pair, PositionResize, format_size
from vitrail.models.vit import ViT
from vitrail.plot.markup import escape
from vitrail.recipes.recipe import Recipe
from vitrail.report.html import html_table
from vitrail.training.build import recipe_task
from vitrail.training.dataset import load_training_data
from vitrail.weights.load import load, quiet_loading

LOW_RESOLUTION_RATIO = 224 / 384  # low to full resolution, as in the paper
INTERPOLATION_NAMES: dict[PositionResize, str] = {
    "official": "bilinear, corners aligned",
    "timm": "bicubic with antialiasing",
    "huggingface": "bicubic",
    "torchvision": "bicubic, corners aligned",
}
INTERPOLATIONS: tuple[PositionResize, ...] = tuple(INTERPOLATION_NAMES)
PRETRAINED, LOW_RESOLUTION, NEW_TABLE, PAPER_INTERPOLATION = "before", "low resolution", "new table", "official"
OTHER_NAMES = {
    PRETRAINED: "initial weights of all others",
    LOW_RESOLUTION: "fine-tuned at low resolution",
    NEW_TABLE: "reinitialised",
}
FINETUNE_OPTIM = replace(MUON, lr=5e-4, muon_lr=2.5e-3)


def jobs(options: ExperimentOptions) -> list[TrainingJob]:
    all_jobs = []
    for seed in options.seeds:
        large, small = recipes(options, seed)
        pretrained = TrainingJob({"arm": PRETRAINED, "seed": seed}, small)
        all_jobs += [pretrained, TrainingJob({"arm": LOW_RESOLUTION, "seed": seed}, _finetuning(small), pretrained)]
        for rule in INTERPOLATIONS[:2] if options.quick else INTERPOLATIONS:
            all_jobs.append(TrainingJob({"arm": rule, "seed": seed}, _finetuning(recipes(options, seed, rule)[0]), pretrained))
        all_jobs.append(
            TrainingJob({"arm": NEW_TABLE, "seed": seed}, _finetuning(large), pretrained, reinit_prefix="positions.")
        )
    return all_jobs


def recipes(options: ExperimentOptions, seed: int, rule: PositionResize = "official") -> tuple[Recipe, Recipe]:
    """Return the recipes at full and at low resolution."""
    size = dataset_shape(dataset_name(options)).size
    side = patch_side(size)
    low = tuple(max(round(length * LOW_RESOLUTION_RATIO / side), 2) * side for length in size)
    large, small = (
        small_vit(options, image=image, position="learned1d", position_resize=rule) for image in (size, (low[0], low[1]))
    )
    return small_recipe(options, large, seed), small_recipe(options, small, seed)


def _finetuning(pretraining: Recipe) -> Recipe:
    """Return the fine-tuning recipe: fewer steps at a lower learning rate, keeping the classifier."""
    return replace(pretraining.with_steps(3 * STEPS // 10), keep_head=True, optim=FINETUNE_OPTIM, ema_decay=None)


def measure(run: Path, job: TrainingJob) -> dict[str, Any]:
    """Measure the accuracy of the low-resolution model at full resolution, before fine-tuning."""
    if job.condition["arm"] != PRETRAINED:
        return {}
    job_recipe, data = job.recipe, load_training_data(job.recipe)
    assert job_recipe.model.image == job_recipe.preprocess.image_size
    large = _full_size(dataset_shape(job_recipe.data).size)
    loader = build_eval_loader(data.test, replace(job_recipe.preprocess, image_size=large), 256)
    accuracies: dict[str, Any] = {}
    task = recipe_task(job_recipe, data)
    with quiet_loading():
        for rule in INTERPOLATIONS:
            accuracies[rule] = task.evaluate(load(run, image=large, resize=rule), loader, 0)["top1"]
        model = load(run, image=large)
    assert isinstance(model, ViT)
    torch.manual_seed(job_recipe.seed)
    for name, weight in model.named_parameters():
        if name.startswith("positions."):
            torch.nn.init.normal_(weight, std=0.02)
    accuracies[NEW_TABLE] = task.evaluate(model, loader, 0)["top1"]
    return {"before_finetuning": accuracies}


def _full_size(size: Pair) -> Pair:
    side = patch_side(size)
    return max(round(size[0] / side), 1) * side, max(round(size[1] / side), 1) * side


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    arms = {name: group for (name,), group in group_by(rows, "arm").items()}
    large, small = (job_recipe.model.image for job_recipe in recipes(options, 0))
    before_finetuning = {
        name: [
            row.measurements["before_finetuning"][name]
            for row in arms[PRETRAINED]
            if name in row.measurements.get("before_finetuning", {})
        ]
        for name in arms
    }
    cells = []
    for number, (name, group) in enumerate(arms.items()):
        size = small if name in (PRETRAINED, LOW_RESOLUTION) else large
        ahead = "" if name == PRETRAINED else difference_cell(group, arms[NEW_TABLE])
        mode = INTERPOLATION_NAMES.get(name) or OTHER_NAMES[name]
        first = format_percent(before_finetuning[name]) if before_finetuning[name] else ""
        cells.append([str(number), escape(name), escape(mode), format_size(size), first, score_cell(group), ahead])
    columns = ("row", "position table", "method", "#pixels", "#before fine-tuning", "#test", "#minus new table")
    numbers = {name: scores_json(group, before_finetuning=before_finetuning[name]) for name, group in arms.items()}
    return ExperimentResult(
        _summary(arms, before_finetuning),
        [html_table(columns, cells), seed_plot(arms)],
        {"arms": numbers, "low_resolution": list(small), "full_resolution": list(large)},
    )


def _summary(arms: dict[str, list[JobResult]], before_finetuning: dict[str, list[float]]) -> str:
    """Compare the paper's interpolation with a new table, so that none is picked for its luck."""
    rules = {name: mean_score(group) for name, group in arms.items() if name in INTERPOLATIONS and get_scores(group)}
    difference, over_low_resolution = (
        paired_difference(arms[PAPER_INTERPOLATION], arms[NEW_TABLE]),
        paired_difference(arms[PAPER_INTERPOLATION], arms[LOW_RESOLUTION]),
    )
    if difference is None or over_low_resolution is None:
        return "Too few runs finished: some diverged."
    verdict = (
        "significantly better"
        if difference.significant and difference.mean > 0
        else "significantly worse"
        if difference.significant
        else "not significantly different"
    )
    claim = (
        f"Fine-tuned at full resolution, the paper's interpolation reaches {mean_score(arms[PAPER_INTERPOLATION]):.1%} "
        f"and a new table {mean_score(arms[NEW_TABLE]):.1%}: it is {verdict} ({difference.text})"
    )
    if before_finetuning[PAPER_INTERPOLATION] and before_finetuning[NEW_TABLE]:
        interpolated, reinitialised = (mean(before_finetuning[name]) for name in (PAPER_INTERPOLATION, NEW_TABLE))
        claim += f"; before fine-tuning, they have {interpolated:.1%} and {reinitialised:.1%}"
    significance = "" if over_low_resolution.significant else ", not significant"
    range_points = 100 * (max(rules.values()) - min(rules.values()))
    return (
        f"{claim}. The {len(rules)} interpolations are within {range_points:.1f} points of one another; "
        f"the paper's minus fine-tuning at low resolution is {over_low_resolution.text}{significance}."
    )


EXPERIMENT = Experiment(
    name="resolution",
    title="Section 3.2: fine-tuning at a higher resolution",
    paper="It is often beneficial to fine-tune at a higher resolution than in pre-training. Patches keep their size, the "
    "sequence grows, and the position embeddings are interpolated in 2-D by their position in the image: with the patch "
    "extraction the only points where 2-D structure is injected by hand (Dosovitskiy et al. 2021, 3.2; 224 pixels to 384). "
    "There is no comparison with alternatives, and no numbers for it.",
    scaled="A ViT with 0.2 million parameters and learned 1-D positions, trained on images downsampled by about 0.58, as 224 "
    "is of 384, then fine-tuned for a third of the steps at full resolution, keeping the classifier. Each interpolation is "
    "that of a library. A new table is randomly initialised.",
    limits="Pre-training and fine-tuning use the same images and classes; in the paper they do not. From 16 to 49 patches "
    "there is little to interpolate, and a new table of 49 rows is learned quickly.",
    build_result=build_result,
    jobs=jobs,
    measure=measure,
    measured_images=1500,
)
