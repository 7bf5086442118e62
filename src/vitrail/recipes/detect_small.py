"""``detect-small``: boxes from random weights. ``vitrail train DATA --task detect``."""

from dataclasses import replace

from vitrail.augment.policy import get_policy
from vitrail.recipes.context import RecipeContext, capped_warmup, interval
from vitrail.recipes.recipe import Optim, Recipe, Schedule
from vitrail.recipes.small import small_model
from vitrail.recipes.task_config import Detection


def detect_small(context: RecipeContext) -> Recipe:
    """A narrow ViT with small patches and a heat map of the objects' centres; Muon, scale jitter, EMA weights."""
    model, preprocess = small_model(replace(context, classes=0))
    batch_size = context.capped_batch(64)
    steps = min(max(context.num_steps(30, batch_size), 1000), 30_000)
    return Recipe(
        name="detect-small",
        data=context.data,
        model=model,
        preprocess=preprocess.with_fit("stretch"),
        steps=steps,
        batch_size=batch_size,
        augment=get_policy("jitter", jitter_scale=(0.75, 1.5), brightness=0.0, contrast=0.0, saturation=0.0),
        optim=Optim(name="muon", lr=2e-3, muon_lr=0.01, weight_decay=0.05, grad_clip=1.0),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(200, steps)),
        ema_decay=0.998,
        task=Detection(classes=len(context.class_names)),
        eval_every=interval(steps),
        checkpoint_every=interval(steps),
    )
