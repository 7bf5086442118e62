"""``finetune``: pretrained weights on a folder of images, on a laptop. ``vitrail finetune WEIGHTS DIR``."""

from vitrail.augment.policy import get_policy
from vitrail.recipes.context import RecipeContext, capped_warmup, interval
from vitrail.recipes.recipe import Optim, Recipe, Schedule


def finetune(context: RecipeContext) -> Recipe:
    """The paper's optimiser, SGD at 0.01 and clipped at 1, in small batches over a few epochs, with gentler crops.

    The paper trains 70 epochs on a dataset of a few thousand images, in batches of 512: hours on a laptop. Here a batch is a
    hundredth of the dataset, but at least 32, for three epochs, and a crop has at least 0.3 of the image, since that is
    easier to adapt to. A real Ti/16 on 3,068 photographs of ten kinds of clothes at 224 pixels: 91.8 % on test after 200
    steps, the mean of three seeds (``vitrail bench finetune WEIGHTS DIR --steps 200``); ``docs/log.md`` has what was tried.
    """
    batch_size = context.capped_batch(min(max(2 ** max(context.num_images // 100, 1).bit_length() // 2, 32), 512))
    steps = min(max(context.num_steps(3, batch_size), 200), 20_000)
    return Recipe(
        name="finetune",
        data=context.data,
        **context.init_fields((224, 224)),
        steps=steps,
        batch_size=batch_size,
        augment=get_policy("none", crop_scale=(0.3, 1.0)),
        optim=Optim(name="sgd", lr=0.01, momentum=0.9, grad_clip=1.0),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(500, steps)),
        eval_every=interval(steps, 5),
        checkpoint_every=interval(steps, 5),
    )
