"""``finetune``: trained weights on a folder of pictures, on a laptop. ``vitrail finetune WEIGHTS DIR``."""

from vitrail.augment.policy import policy
from vitrail.recipes.given import Given, periods, warm_up
from vitrail.train.recipe import Optim, Recipe, Schedule


def finetune(given: Given) -> Recipe:
    """The paper's optimiser and crops, SGD at 0.01 and clipped at 1, in small batches over a few epochs.

    The paper sees a set of a few thousand pictures seventy times, in batches of 512: hours on a laptop. A hundredth of the
    data at a time, but at least 32, learns from it in five epochs. ``docs/log.md`` has what was measured.
    """
    batch = given.batch(min(max(2 ** max(given.pictures // 100, 1).bit_length() // 2, 32), 512))
    steps = min(max(given.steps(5, batch), 200), 20_000)
    return Recipe(
        name="finetune",
        data=given.data,
        **given.begin((224, 224)),
        steps=steps,
        batch=batch,
        augment=policy("none"),
        optim=Optim(kind="sgd", lr=0.01, momentum=0.9, clip=1.0),
        schedule=Schedule("cosine", warmup=warm_up(500, steps)),
        evaluate=periods(steps, 5),
        checkpoint=periods(steps, 5),
    )
