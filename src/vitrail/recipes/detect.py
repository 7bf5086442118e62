"""``detect``: pretrained weights on images with boxes. ``vitrail finetune WEIGHTS DATA --task detect``."""

from dataclasses import replace

from vitrail.augment.policy import get_policy
from vitrail.recipes.context import RecipeContext, capped_warmup, interval
from vitrail.recipes.recipe import Optim, Recipe, Schedule
from vitrail.recipes.task_config import Detection


def detect(context: RecipeContext) -> Recipe:
    """AdamW with a lower rate in earlier blocks (BEiT; Bao et al. 2022), scale jitter, and a heat map of the objects' centres
    on the tokens of four blocks.

    The whole image is stretched to the input, since no object may be cut off.
    """
    batch_size = context.capped_batch(16)
    steps = min(max(context.num_steps(60, batch_size), 600), 40_000)
    fields = context.init_fields((224, 224))
    fields["model"] = replace(fields["model"], classes=0)
    return Recipe(
        name="detect",
        data=context.data,
        **{**fields, "preprocess": fields["preprocess"].with_fit("stretch")},
        steps=steps,
        batch_size=batch_size,
        augment=get_policy("jitter"),
        optim=Optim(name="adamw", lr=3e-4, weight_decay=0.05, grad_clip=1.0, layer_decay=0.8, head_lr_scale=3.0),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(500, steps)),
        ema_decay=0.99,
        task=Detection(classes=len(context.class_names), layers="quarters"),
        eval_every=interval(steps, 10),
        checkpoint_every=interval(steps, 10),
    )
