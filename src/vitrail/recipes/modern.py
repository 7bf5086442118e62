"""Baselines published after the paper. Scores are their authors', not reproduced."""

from vitrail.augment.policy import policy
from vitrail.data.preprocess import imagenet, official
from vitrail.models.variants import variant
from vitrail.recipes.given import Given, periods, warm_up
from vitrail.train.recipe import Optim, Recipe, Schedule


def plain(given: Given) -> Recipe:
    """``vitrail train DIR --recipe plain``: Beyer, Zhai and Kolesnikov 2022, "Better plain ViT baselines for ImageNet-1k".

    Fixed 2-D sin-cos positions, average pooling, one linear head, RandAugment (2, 10) and Mixup 0.2; no dropout, no stochastic
    depth, no label smoothing. S/16, 90 epochs: 76.5 % on ImageNet (the authors', not reproduced).
    """
    image, batch = given.image or (224, 224), given.batch(1024)
    steps = given.steps(90, batch)
    return Recipe(
        name="plain",
        data=given.data,
        model=variant(given.model or "S/16", image=image, classes=given.classes, position="sincos2d", pool="gap"),
        preprocess=official(image),
        steps=steps,
        batch=batch,
        augment=policy("light2"),
        optim=Optim(lr=1e-3, weight_decay=1e-4, decay_apart=True, clip=1.0),
        schedule=Schedule("cosine", warmup=warm_up(10_000, steps)),
        evaluate=periods(steps),
        checkpoint=periods(steps, 50),
    )


def augreg(given: Given) -> Recipe:
    """``vitrail train DIR --recipe augreg``: Steiner et al. 2021, "How to train your ViT?".

    Medium augmentation and weight decay 0.1 in place of dropout, 300 epochs. The paper plots hundreds of such settings; no
    single score belongs to this one.
    """
    image, batch = given.image or (224, 224), given.batch(4096)
    steps = given.steps(300, batch)
    return Recipe(
        name="augreg",
        data=given.data,
        model=variant(given.model or "Ti/16", image=image, classes=given.classes),
        preprocess=official(image),
        steps=steps,
        batch=batch,
        augment=policy("medium1"),
        optim=Optim(lr=1e-3, weight_decay=0.1, clip=1.0),
        schedule=Schedule("cosine", warmup=warm_up(10_000, steps)),
        evaluate=periods(steps),
        checkpoint=periods(steps, 50),
    )


def textbook(given: Given) -> Recipe:
    """``vitrail train DIR --recipe textbook``: the settings that lecture notes and tutorials give.

    Adam at 1e-3, weight decay 0.1, 10,000 steps of warm-up then cosine to 0, dropout and stochastic depth 0.1, RandAugment,
    Mixup, CutMix and Random Erasing. No published score belongs to it.
    """
    image, batch = given.image or (224, 224), given.batch(4096)
    steps = given.steps(300, batch)
    model = variant(given.model or "B/16", image=image, classes=given.classes, dropout=0.1, stochastic_depth=0.1)
    return Recipe(
        name="textbook",
        data=given.data,
        model=model,
        preprocess=imagenet(image),
        steps=steps,
        batch=batch,
        augment=policy("textbook"),
        optim=Optim(lr=1e-3, weight_decay=0.1),
        schedule=Schedule("cosine", warmup=warm_up(10_000, steps)),
        evaluate=periods(steps),
        checkpoint=periods(steps, 50),
    )


def resnet(given: Given) -> Recipe:
    """``vitrail train DIR --recipe resnet``: the convolutional baseline, BiT's R50x1 (Kolesnikov et al. 2020).

    SGD with momentum, batch 4096 at lr 0.1 per 256 images, weight decay 1e-4, 90 epochs: 76.8 % on ImageNet (mindcv's
    BiT50-S, not reproduced).
    """
    image, batch = given.image or (224, 224), given.batch(4096)
    steps, lr = given.steps(90, batch), 0.1 * batch / 256
    return Recipe(
        name="resnet",
        data=given.data,
        model=variant(given.model or "R50x1", image=image, classes=given.classes),
        preprocess=official(image),
        steps=steps,
        batch=batch,
        augment=policy("none"),
        optim=Optim(kind="sgd", lr=lr, momentum=0.9, weight_decay=1e-4),
        schedule=Schedule("cosine", warmup=warm_up(5_000, steps)),
        evaluate=periods(steps),
        checkpoint=periods(steps, 50),
    )
