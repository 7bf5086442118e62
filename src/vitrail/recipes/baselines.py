"""Baselines published after the paper. Scores are their authors', not reproduced."""

from vitrail.augment.policy import get_policy
from vitrail.data.preprocess import imagenet_preprocess, official_preprocess
from vitrail.models.variants import variant
from vitrail.recipes.context import RecipeContext, capped_warmup, interval
from vitrail.recipes.recipe import Optim, Recipe, Schedule


def plain(context: RecipeContext) -> Recipe:
    """``vitrail train DIR --recipe plain``: Beyer, Zhai and Kolesnikov 2022, "Better plain ViT baselines for ImageNet-1k".

    Fixed 2-D sin-cos positions, average pooling, one linear head, RandAugment (2, 10) and Mixup 0.2; no dropout, no stochastic
    depth, no label smoothing. S/16, 90 epochs: 76.5 % on ImageNet (the authors', not reproduced).
    """
    image, batch_size = context.image or (224, 224), context.capped_batch(1024)
    steps = context.num_steps(90, batch_size)
    return Recipe(
        name="plain",
        data=context.data,
        model=variant(context.model or "S/16", image=image, classes=context.classes, position="sincos2d", pool="gap"),
        preprocess=official_preprocess(image),
        steps=steps,
        batch_size=batch_size,
        augment=get_policy("light2"),
        optim=Optim(lr=1e-3, weight_decay=1e-4, independent_weight_decay=True, grad_clip=1.0),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(10_000, steps)),
        eval_every=interval(steps),
        checkpoint_every=interval(steps, 50),
    )


def augreg(context: RecipeContext) -> Recipe:
    """``vitrail train DIR --recipe augreg``: Steiner et al. 2021, "How to train your ViT?".

    Medium augmentation and weight decay 0.1 in place of dropout, 300 epochs. The paper plots hundreds of such settings; no
    single score belongs to this one.
    """
    image, batch_size = context.image or (224, 224), context.capped_batch(4096)
    steps = context.num_steps(300, batch_size)
    return Recipe(
        name="augreg",
        data=context.data,
        model=variant(context.model or "Ti/16", image=image, classes=context.classes),
        preprocess=official_preprocess(image),
        steps=steps,
        batch_size=batch_size,
        augment=get_policy("medium1"),
        optim=Optim(lr=1e-3, weight_decay=0.1, grad_clip=1.0),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(10_000, steps)),
        eval_every=interval(steps),
        checkpoint_every=interval(steps, 50),
    )


def textbook(context: RecipeContext) -> Recipe:
    """``vitrail train DIR --recipe textbook``: the settings that lecture notes and tutorials give.

    Adam at 1e-3, weight decay 0.1, 10,000 steps of warm-up then cosine to 0, dropout and stochastic depth 0.1, RandAugment,
    Mixup, CutMix and Random Erasing. No published score belongs to it.
    """
    image, batch_size = context.image or (224, 224), context.capped_batch(4096)
    steps = context.num_steps(300, batch_size)
    model = variant(context.model or "B/16", image=image, classes=context.classes, dropout=0.1, stochastic_depth=0.1)
    return Recipe(
        name="textbook",
        data=context.data,
        model=model,
        preprocess=imagenet_preprocess(image),
        steps=steps,
        batch_size=batch_size,
        augment=get_policy("textbook"),
        optim=Optim(lr=1e-3, weight_decay=0.1),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(10_000, steps)),
        eval_every=interval(steps),
        checkpoint_every=interval(steps, 50),
    )


def resnet(context: RecipeContext) -> Recipe:
    """``vitrail train DIR --recipe resnet``: the convolutional baseline, BiT's R50x1 (Kolesnikov et al. 2020).

    SGD with momentum, batch 4096 at lr 0.1 per 256 images, weight decay 1e-4, 90 epochs: 76.8 % on ImageNet (mindcv's
    BiT50-S, not reproduced).
    """
    image, batch_size = context.image or (224, 224), context.capped_batch(4096)
    steps, lr = context.num_steps(90, batch_size), 0.1 * batch_size / 256
    return Recipe(
        name="resnet",
        data=context.data,
        model=variant(context.model or "R50x1", image=image, classes=context.classes),
        preprocess=official_preprocess(image),
        steps=steps,
        batch_size=batch_size,
        augment=get_policy("none"),
        optim=Optim(name="sgd", lr=lr, momentum=0.9, weight_decay=1e-4),
        schedule=Schedule("cosine", warmup_steps=capped_warmup(5_000, steps)),
        eval_every=interval(steps),
        checkpoint_every=interval(steps, 50),
    )
