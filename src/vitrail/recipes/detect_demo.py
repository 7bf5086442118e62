"""``detect-demo``: the objects of ``panes`` in minutes on a laptop. ``vitrail train panes --task detect``."""

from vitrail.augment.policy import get_policy
from vitrail.recipes.context import RecipeContext, capped_warmup
from vitrail.recipes.recipe import Optim, Recipe, Schedule
from vitrail.recipes.small import small_model
from vitrail.recipes.task_config import Detection


def detect_demo(context: RecipeContext) -> Recipe:
    """Four blocks of width 128 and a heat map on the tokens of all; Muon, scale jitter, EMA weights.

    AP50 of the figures is 0.990 on test, AP 0.649; ``docs/log.md`` has more.
    """
    model, preprocess = small_model(context, width=128, depth=4, mlp=256, heads=4, classes=0)
    steps = 400
    return Recipe(
        name="detect-demo",
        data=context.data,
        model=model,
        preprocess=preprocess.with_fit("stretch"),
        steps=steps,
        batch_size=context.capped_batch(64),
        augment=get_policy("jitter", jitter_scale=(0.75, 1.5), brightness=0.0, contrast=0.0, saturation=0.0),
        optim=Optim(name="muon", lr=2e-3, muon_lr=0.01, weight_decay=0.05, grad_clip=1.0),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(100, steps)),
        ema_decay=0.99,
        task=Detection(classes=len(context.class_names), layers="quarters"),
        eval_every=200,
        checkpoint_every=200,
    )
