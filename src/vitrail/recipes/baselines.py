"""Baselines published after the paper. Scores are their authors', not reproduced."""

from vitrail.data.preprocess import imagenet_preprocess
from vitrail.recipes.context import RecipeContext
from vitrail.recipes.paper import from_scratch
from vitrail.recipes.recipe import Optim, Recipe


def plain(context: RecipeContext) -> Recipe:
    """``vitrail train DIR --recipe plain``: Beyer, Zhai and Kolesnikov 2022, "Better plain ViT baselines for ImageNet-1k".

    Fixed 2-D sin-cos positions, average pooling, one linear head, RandAugment (2, 10) and Mixup 0.2; no dropout, no stochastic
    depth, no label smoothing. S/16, 90 epochs: 76.5 % on ImageNet (the authors', not reproduced).
    """
    optim = Optim(lr=1e-3, weight_decay=1e-4, independent_weight_decay=True, grad_clip=1.0)
    return from_scratch(context, "plain", "S/16", 90, 1024, optim, augment="light2", position="sincos2d", pool="gap")


def augreg(context: RecipeContext) -> Recipe:
    """``vitrail train DIR --recipe augreg``: Steiner et al. 2021, "How to train your ViT?".

    Medium augmentation and weight decay 0.1 in place of dropout, 300 epochs. The paper plots hundreds of such settings; no
    single score belongs to this one.
    """
    optim = Optim(lr=1e-3, weight_decay=0.1, grad_clip=1.0)
    return from_scratch(context, "augreg", "Ti/16", 300, 4096, optim, augment="medium1")


def textbook(context: RecipeContext) -> Recipe:
    """``vitrail train DIR --recipe textbook``: the settings that lecture notes and tutorials give.

    Adam at 1e-3, weight decay 0.1, 10,000 steps of warm-up then cosine to 0, dropout and stochastic depth 0.1, RandAugment,
    Mixup, CutMix and Random Erasing. No published score belongs to it.
    """
    return from_scratch(
        context, "textbook", "B/16", 300, 4096, Optim(lr=1e-3, weight_decay=0.1),
        augment="textbook", preprocess=imagenet_preprocess, dropout=0.1, stochastic_depth=0.1,
    )  # fmt: skip


def resnet(context: RecipeContext) -> Recipe:
    """``vitrail train DIR --recipe resnet``: the convolutional baseline, BiT's R50x1 (Kolesnikov et al. 2020).

    SGD with momentum, batch 4096 at lr 0.1 per 256 images, weight decay 1e-4, 90 epochs: 76.8 % on ImageNet (mindcv's
    BiT50-S, not reproduced).
    """
    optim = Optim(name="sgd", lr=0.1 * context.capped_batch(4096) / 256, momentum=0.9, weight_decay=1e-4)
    return from_scratch(context, "resnet", "R50x1", 90, 4096, optim, warmup_steps=5_000)
