"""``vitrail lab masked``: does learning without labels help where labels are few (Dosovitskiy et al. 2021, B.1.2)?

Two questions on one small encoder, each arm fine-tuned in the same number of steps on the same few labelled pictures, at the
learning rate that is best for it on validation, and told on test for several draws of the labels:

- few: pre-training on all the pictures without their labels, by each method, against starting from nothing;
- order: half of the classes are for pre-training, with labels or without, and the others are the task. The paper's order is
  nothing < masked patches < labels.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import mean, stdev

import numpy as np
import torch

from vitrail.augment.policy import policy
from vitrail.data.loader import evaluation
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.open import pictures
from vitrail.data.sources.source import Data, Part, Progress, Source
from vitrail.errors import VitrailError
from vitrail.models.build import build
from vitrail.models.masked import masked
from vitrail.models.masking import Masking
from vitrail.models.settings import ViTConfig
from vitrail.models.vit import ViT, zero_head
from vitrail.tasks.classify import Classify
from vitrail.tasks.masked import Masks
from vitrail.train.learn import learn
from vitrail.train.recipe import Optim, Recipe, Schedule

LABELS = (100, 1000)
RATES = (5e-4, 1e-3, 2e-3)
METHODS = {
    "masked-patch": Masking("masked-patch", target="colour"),
    "masked-patch, shrunken": Masking("masked-patch", target="shrunken"),
    "masked-patch, pixels": Masking("masked-patch", target="pixels"),
    "mae": Masking("mae", 0.75, normalise=True, decoder_width=48, decoder_depth=2, decoder_heads=3),
    "simmim": Masking("simmim", 0.6),
}
NOTHING, SUPERVISED = "nothing", "labels of other classes"
QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # of Student's t, two-sided 95 %, by the number of seeds


@dataclass(frozen=True)
class Length:
    """Steps of pre-training and of fine-tuning, and pictures of a step of each."""

    pretrain: int = 2000
    finetune: int = 200
    batch: int = 128
    few: int = 64


@dataclass(frozen=True)
class Arm:
    """``gain``: the mean over seeds of what it has on test beyond starting from nothing, with the half of its 95 % interval."""

    question: str
    start: str
    labels: int
    lr: float
    test: tuple[float, ...]  # a seed
    mean: float
    gain: float
    error: float | None


@dataclass(frozen=True)
class MaskedLab:
    data: str
    arms: list[Arm]
    losses: dict[str, float]  # of pre-training, on validation
    parameters: int


def masked_lab(
    data: str = "fashion",
    seeds: int = 3,
    length: Length | None = None,
    methods: tuple[str, ...] = ("masked-patch", "mae", "simmim"),
    questions: tuple[str, ...] = ("few", "order"),
    progress: Progress | None = None,
) -> MaskedLab:
    length, opened = length or Length(), pictures(data, progress=progress)
    how = _preprocess(opened)
    work = _Work(opened, how, length, seeds, progress)
    arms: list[Arm] = []
    if "few" in questions:
        everything = tuple(range(len(opened.names)))
        starts = {NOTHING: None, **{name: work.pretrained(METHODS[name], opened.train, name) for name in methods}}
        arms += work.compared("few", starts, everything)
    if "order" in questions:
        half = len(opened.names) // 2
        before, after = tuple(range(half)), tuple(range(half, len(opened.names)))
        others = _of(opened.train, before)
        starts = {
            NOTHING: None,
            "masked-patch": work.pretrained(METHODS["masked-patch"], others, "masked-patch of other classes"),
            SUPERVISED: work.taught(others, before),
        }
        arms += work.compared("order", starts, after)
    return MaskedLab(data, arms, work.losses, sum(weight.numel() for weight in build(work.model(1)).parameters()))


class _Work:
    def __init__(self, data: Data, how: Preprocess, length: Length, seeds: int, progress: Progress | None) -> None:
        self.data, self.how, self.length, self.seeds, self.progress = data, how, length, seeds, progress
        self.losses: dict[str, float] = {}

    def model(self, classes: int) -> ViTConfig:
        side = 4 if max(self.how.image) <= 48 else 8
        return ViTConfig(
            width=96, depth=4, mlp=384, heads=3, patch=(side, side), image=self.how.image, channels=len(self.how.mean),
            classes=classes, position="sincos2d", pool="gap", gelu="exact",
        )  # fmt: skip

    def recipe(self, steps: int, batch: int, lr: float, seed: int, classes: int) -> Recipe:
        return Recipe(
            name="lab", model=self.model(classes), preprocess=self.how, steps=steps, batch=batch, seed=seed,
            augment=policy("pad", pad=2), optim=Optim(lr=lr, weight_decay=0.05, clip=1.0),
            schedule=Schedule(warmup=steps // 10),
        )  # fmt: skip

    def pretrained(self, masking: Masking, source: Source, name: str) -> ViT:
        recipe = replace(self.recipe(self.length.pretrain, self.length.batch, 1e-3, 0, 0), masking=masking)
        torch.manual_seed(0)
        whole = masked(self._fresh(0), masking)
        task = Masks(masking, self.model(0).patch, self.how)
        for state in learn(whole, task, source, recipe):
            self._tell(f"pre-training {name}", state.step, recipe.steps)
        self.losses[name] = task.evaluate(whole, evaluation(self.data.validation, self.how, 256), 0)["loss"]
        return whole.encoder

    def taught(self, source: Source, classes: tuple[int, ...]) -> ViT:
        """Supervised: the labels of these classes."""
        recipe = self.recipe(self.length.pretrain, self.length.batch, 1e-3, 0, len(classes))
        torch.manual_seed(0)
        model = self._fresh(len(classes))
        for state in learn(model, Classify(len(classes)), source, recipe):
            self._tell("pre-training with labels", state.step, recipe.steps)
        return model

    def compared(self, question: str, starts: dict[str, ViT | None], classes: tuple[int, ...]) -> Iterator[Arm]:
        for labels in LABELS:
            plain: tuple[float, ...] = ()
            for name, start in starts.items():
                validation = {  # on a draw of its own
                    lr: self._tuned(start, labels, classes, lr, self.seeds, self.data.validation) for lr in RATES
                }
                lr = max(validation, key=lambda rate: validation[rate])
                scores = tuple(self._tuned(start, labels, classes, lr, seed, self.data.test) for seed in range(self.seeds))
                plain = plain or scores
                gains = [ours - theirs for ours, theirs in zip(scores, plain, strict=True)]
                yield Arm(question, name, labels, lr, scores, mean(scores), mean(gains), _half(gains))
                self._tell(f"{question}, {labels} labels: {name} {mean(scores):.1%}", 1, 1)

    def _tuned(self, start: ViT | None, labels: int, classes: tuple[int, ...], lr: float, seed: int, told: Source) -> float:
        """Accuracy on the pictures it is told on."""
        few = _drawn(_of(self.data.train, classes), labels, seed)
        recipe = self.recipe(self.length.finetune, min(self.length.few, labels), lr, seed, len(classes))
        torch.manual_seed(seed)
        model = self._fresh(len(classes))
        if start is not None:
            own = {name: weight for name, weight in start.state_dict().items() if not name.startswith("head.")}
            model.load_state_dict(own, strict=False)
            model.head = zero_head(model.config.width, len(classes))
        task = Classify(len(classes))
        for _ in learn(model, task, few, recipe):
            pass
        return task.evaluate(model, evaluation(_of(told, classes), self.how, 256), 0)["top1"]

    def _fresh(self, classes: int) -> ViT:
        made = build(self.model(classes))
        assert isinstance(made, ViT)
        return made

    def _tell(self, what: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(what, done, total)


@dataclass(frozen=True)
class _Renamed:
    """Pictures of some classes, counted from 0."""

    part: Part
    labels: np.ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.part)

    def where(self, index: int) -> str:
        return self.part.where(index)

    def content(self, index: int) -> bytes | np.ndarray:
        return self.part.content(index)


def _of(source: Source, classes: tuple[int, ...]) -> Source:
    part = Part(source, np.flatnonzero(np.isin(source.labels, classes)))
    number = {label: place for place, label in enumerate(classes)}
    labels = np.array([number[label] for label in part.labels.tolist()], np.int64)
    return _Renamed(part, labels, tuple(source.names[label] for label in classes))


def _drawn(source: Source, count: int, seed: int) -> Source:
    """As many of each class, in all so many."""
    chance = np.random.default_rng(seed)
    each = count // len(source.names)
    found = [np.flatnonzero(source.labels == label) for label in range(len(source.names))]
    if min(len(members) for members in found) < each:
        raise VitrailError(f"the experiment needs {each} labelled pictures of each class, and there are fewer; try fashion")
    return Part(source, np.sort(np.concatenate([chance.permutation(members)[:each] for members in found])))


def _preprocess(data: Data) -> Preprocess:
    pixels = data.train.content(0)
    if not isinstance(pixels, np.ndarray) or max(pixels.shape[:2]) > 64:
        raise VitrailError(f"the experiment takes small pictures that lie in memory, and {data.name} has others; try fashion")
    side = 4 if max(pixels.shape[:2]) <= 48 else 8
    image = pixels.shape[0] // side * side, pixels.shape[1] // side * side
    return Preprocess(image, mean=(0.5,) * pixels.shape[2], std=(0.5,) * pixels.shape[2])


def _half(gains: list[float]) -> float | None:
    """Of Student's 95 % interval of the mean."""
    return QUANTILES[len(gains)] * stdev(gains) / len(gains) ** 0.5 if len(gains) in QUANTILES else None
