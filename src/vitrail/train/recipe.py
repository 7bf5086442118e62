"""The configuration of a training run: everything that decides its result, complete and validated. Torch-free.

Steps count updates of the weights; the batch size is that of one update, over all devices and micro-batches.
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
    gradient, or Muon (Jordan et al. 2024) for matrices with AdamW for the rest. Norms, biases, tokens and positions never
    decay."""

    kind: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    momentum: float = 0.9  # SGD only
    nesterov: bool = False
    weight_decay: float = 0.0
    decay_apart: bool = False  # decay by weight_decay times the schedule (big_vision), not by lr times weight_decay
    clip: float | None = None  # maximum global gradient norm
    layer_decay: float = 1.0  # each block's lr is this times that of the block after it
    head_lr: float = 1.0  # multiplies lr, for the classifier
    train: Literal["all", "blocks", "head"] = "all"  # the rest is frozen
    blocks: int = 0  # with trainable=blocks: how many of the last blocks, besides head and final norm
    matrix_lr: float = 0.02  # Muon's lr for matrices; the rest uses lr
    matrix_momentum: float = 0.95

    def __post_init__(self) -> None:
        check(self)
        _positive(self, "optim.", "lr", "epsilon", "matrix_lr", "clip", "head_lr")
        _share(self, "optim.", "momentum", "matrix_momentum")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise VitrailError(f"optim.betas must be from 0 to below 1, got {self.betas}; try optim.betas=0.9,0.999")
        if self.weight_decay < 0 or self.blocks < 0:
            raise VitrailError("optim.weight_decay and optim.trainable_blocks must be at least 0; try 0")
        if not 0 < self.layer_decay <= 1:
            raise VitrailError(f"optim.layer_decay must be above 0 and at most 1, got {self.layer_decay}; try 0.75")
        if self.kind == "sgd" and self.nesterov and not self.momentum:
            raise VitrailError("optim.nesterov looks ahead along the momentum, and optim.momentum is 0; try optim.momentum=0.9")
        if self.kind == "sgd" and self.decay_apart:  # torch's SGD has it in the gradient, and then in the momentum
            raise VitrailError(
                "optim.independent_weight_decay needs decoupled weight decay, which optim.name=sgd does not have"
            )


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from 0 to lr in ``warmup_steps``, then decay to ``min_lr_ratio`` times lr."""

    kind: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    warmup: int = 0
    cooldown: int = 0  # last steps, linearly to the minimum (rsqrt, constant)
    floor: float = 0.0
    timescale: int = 10_000  # rsqrt only

    def __post_init__(self) -> None:
        check(self)
        if min(self.warmup, self.cooldown) < 0 or self.timescale < 1:
            raise VitrailError(
                "schedule.warmup_steps and cooldown_steps must be at least 0, schedule.rsqrt_timescale at least 1"
            )
        _share(self, "schedule.", "floor")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run's result. ``vitrail.fit(recipe, folder)`` trains it."""

    name: str
    model: ModelConfig
    preprocess: Preprocess
    steps: int
    batch: int
    data: str = "fashion"
    validation: float = 0.1  # fractions of train, if the dataset has no such split
    test: float = 0.1
    start: str | None = None  # initial weights; None: random initialisation
    start_hash: str | None = None  # of those weights, so that a recipe always means the same ones
    keep_head: bool = False  # keep their classifier too, if the classes are the same
    augment: Policy = field(default_factory=Policy)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    masking: Masking | None = None  # self-supervised: predict masked patches
    loss: Literal["softmax", "sigmoid"] = "softmax"
    smoothing: float = 0.0
    class_weights: bool = False  # weight classes inversely to their frequency
    micro: int | None = None  # per device; None: the whole batch, or what fits into memory
    ema: float | None = None  # if set, the EMA weights are evaluated and saved
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"  # replicate the model on each process, or shard it
    recompute: bool = False  # recompute activations in the backward pass
    seed: int = 0
    window: int | None = None  # shuffle among so many neighbouring images; None: among all
    evaluate: int = 100  # steps between two evaluations on validation
    checkpoint: int = 100  # steps between two checkpoints
    keep: int = 2  # checkpoints
    patience: int | None = None  # evaluations without improvement before stopping early
    tolerated: float = 0.05  # fraction of the images that may be unusable

    def __post_init__(self) -> None:
        check(self)
        for name in ("steps", "batch", "evaluate", "checkpoint", "keep", "micro", "patience", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitrailError(f"{name} must be at least 1, got {value}; try {name}=1")
        _share(self, "", "smoothing", "ema", "tolerated", "validation", "test")
        if self.schedule.warmup + self.schedule.cooldown > self.steps:
            raise VitrailError(
                f"schedule.warmup_steps and cooldown_steps must fit into {self.steps} steps, got {self.schedule.warmup} and "
                f"{self.schedule.cooldown}; try schedule.warmup_steps={self.steps // 10}"
            )
        if self.model.image != self.preprocess.image or self.model.channels != len(self.preprocess.mean):
            raise VitrailError(
                f"model and preprocess must agree on the image, got {self.model.image} of {self.model.channels} channels and "
                f"{self.preprocess.image} of {len(self.preprocess.mean)}; change both"
            )

        if self.masking is not None:
            check_masking(self.masking, self.model)
            if self.augment.mixup or self.augment.cutmix:
                raise VitrailError(f"{self.masking.method} has no labels to mix; try augment.mixup=0 augment.cutmix=0")

    def lasting(self, steps: int) -> "Recipe":
        """Return the recipe with another number of steps: warm-up, intervals and the EMA horizon scale with it."""
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
            evaluate=-(-self.evaluate * steps // self.steps),  # never more evaluations than before
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
