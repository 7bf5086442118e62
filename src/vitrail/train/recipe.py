"""A training run as settings: everything that decides its result, complete and checked. Needs no torch.

Steps count updates of the weights; a batch is what one update sees, however many devices and pieces it is computed in.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from vitrail.augment.policy import Policy
from vitrail.config import check
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.models.masking import Masking, check_masking
from vitrail.models.settings import ModelConfig


@dataclass(frozen=True)
class Optim:
    """Adam (Kingma and Ba 2015) with decoupled weight decay (Loshchilov and Hutter 2019), SGD with momentum and decay in the
    gradient, or Muon (Jordan et al. 2024) for matrices beside AdamW for the rest. Norms, biases, tokens and positions never
    decay."""

    kind: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9  # of SGD
    nesterov: bool = False
    weight_decay: float = 0.0
    decay_apart: bool = False  # decay by weight_decay itself along the schedule (big_vision), not by lr times it
    clip: float | None = None  # global norm of the gradient
    layer_decay: float = 1.0  # each block's lr is this times that of the block above it
    head_lr: float = 1.0  # times lr, for the classifier
    train: Literal["all", "blocks", "head"] = "all"  # what is not trained is frozen
    blocks: int = 0  # with train=blocks: how many of the last ones, beside head and last norm
    matrix_lr: float = 0.02  # Muon's lr for matrices; the rest has lr
    matrix_momentum: float = 0.95

    def __post_init__(self) -> None:
        check(self)
        _positive(self, "optim.", "lr", "epsilon", "matrix_lr", "clip", "head_lr")
        _share(self, "optim.", "momentum", "matrix_momentum")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise VitrailError(f"optim.betas must be from 0 to below 1, got {self.betas}; try optim.betas=0.9,0.999")
        if self.weight_decay < 0 or self.blocks < 0:
            raise VitrailError("optim.weight_decay and optim.blocks must not be below 0; try 0")
        if not 0 < self.layer_decay <= 1:
            raise VitrailError(f"optim.layer_decay must be above 0 and at most 1, got {self.layer_decay}; try 0.75")
        if self.kind == "sgd" and self.nesterov and not self.momentum:
            raise VitrailError("optim.nesterov looks ahead along the momentum, and optim.momentum is 0; try optim.momentum=0.9")
        if self.kind == "sgd" and self.decay_apart:  # torch's SGD has it in the gradient, and then in the momentum
            raise VitrailError("optim.decay_apart is for decoupled weight decay, which optim.kind=sgd has not; try adamw")


@dataclass(frozen=True)
class Schedule:
    """From nothing to lr in ``warmup`` steps, then down to ``floor`` times lr."""

    kind: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    warmup: int = 0
    cooldown: int = 0  # steps at the end that go to the floor linearly (rsqrt, constant)
    floor: float = 0.0
    timescale: int = 10_000  # of rsqrt

    def __post_init__(self) -> None:
        check(self)
        if min(self.warmup, self.cooldown) < 0 or self.timescale < 1:
            raise VitrailError("schedule.warmup and schedule.cooldown must not be below 0, schedule.timescale not below 1")
        _share(self, "schedule.", "floor")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run's result. ``vitrail.fit(recipe)`` runs it."""

    name: str
    model: ModelConfig
    preprocess: Preprocess
    steps: int
    batch: int
    data: str = "fashion"
    validation: float = 0.1  # shares of train, where the data has no such split
    test: float = 0.1
    start: str | None = None  # weights to start from; none: from nothing
    start_hash: str | None = None  # of those weights, so that the same recipe means the same start
    keep_head: bool = False  # start with their classifier too, where the classes are the same
    augment: Policy = field(default_factory=Policy)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    masking: Masking | None = None  # to learn without labels, from patches that are hidden
    loss: Literal["softmax", "sigmoid"] = "softmax"
    smoothing: float = 0.0
    class_weights: bool = False  # rare classes count as much as frequent ones
    micro: int | None = None  # pictures computed at a time; none: the whole batch, or what fits into memory
    ema: float | None = None  # of the weights; what is evaluated and kept then is the average
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"  # how several processes share the model: whole on each, or in parts
    recompute: bool = False  # activations in the backward pass, instead of keeping them
    seed: int = 0
    window: int | None = None  # pictures, lying near one another, among which the order is drawn; none: among all
    evaluate: int = 100  # steps between two evaluations on validation
    checkpoint: int = 100  # steps between two checkpoints
    keep: int = 2  # checkpoints
    patience: int | None = None  # evaluations without improvement after which to stop
    tolerated: float = 0.05  # share of the pictures that may be unusable

    def __post_init__(self) -> None:
        check(self)
        for name in ("steps", "batch", "evaluate", "checkpoint", "keep", "micro", "patience", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitrailError(f"{name} must be at least 1, got {value}; try {name}=1")
        _share(self, "", "smoothing", "ema", "tolerated", "validation", "test")
        if self.schedule.warmup + self.schedule.cooldown > self.steps:
            raise VitrailError(
                f"schedule.warmup and schedule.cooldown must fit into the {self.steps} steps, got {self.schedule.warmup} and "
                f"{self.schedule.cooldown}; try schedule.warmup={self.steps // 10}"
            )
        if self.model.image != self.preprocess.image or self.model.channels != len(self.preprocess.mean):
            raise VitrailError(
                f"model and preprocess must agree on the picture, got {self.model.image} of {self.model.channels} channels and "
                f"{self.preprocess.image} of {len(self.preprocess.mean)}; change both"
            )

        if self.masking is not None:
            check_masking(self.masking, self.model)
            if self.augment.mixup or self.augment.cutmix:
                raise VitrailError(f"{self.masking.method} has no labels to mix; try augment.mixup=0 augment.cutmix=0")

    def lasting(self, steps: int) -> "Recipe":
        """The same in another number of steps: warm-up, periods and the reach of the average change with it."""
        share = steps / self.steps
        plan = self.schedule
        return replace(
            self,
            steps=steps,
            schedule=replace(
                plan,
                warmup=int(plan.warmup * share),
                cooldown=int(plan.cooldown * share),
                timescale=max(int(plan.timescale * share), 1),
            ),
            ema=None if self.ema is None else max(1 - (1 - self.ema) / share, 0.0),
            evaluate=-(-self.evaluate * steps // self.steps),  # never more of them than before
            checkpoint=max(int(self.checkpoint * share), 1),
        )


def _positive(settings: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise VitrailError(f"{prefix}{name} must be above 0, got {value}; try {prefix}{name}=0.001")


def _share(settings: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value < 1:
            raise VitrailError(f"{prefix}{name} must be from 0 to below 1, got {value}; try {prefix}{name}=0.1")
