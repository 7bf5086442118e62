"""The configuration of a training run: everything that decides its result, complete and validated. Torch-free.

Steps count updates of the weights; the batch size is that of one update, over all devices and micro-batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from vitrail.augment.policy import Policy
from vitrail.config import added, override, validate
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.columns import ANY_COLUMNS, Columns
from vitrail.data.sources.fold import Fold
from vitrail.errors import VitrailError
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.recipes.task_config import Classification, TaskConfig

JITTER_FIELDS = ("brightness", "contrast", "saturation", "hue")
MIN_INTERVAL = 10  # steps between two evaluations or checkpoints of a shortened run


@dataclass(frozen=True)
class Optim:
    """Adam (Kingma and Ba 2015) with decoupled weight decay (Loshchilov and Hutter 2019), SGD with momentum and decay in the
    gradient, or Muon (Jordan et al. 2024) for matrices with AdamW for the rest. Norms, biases, tokens and positions never
    decay."""

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.9  # SGD only
    nesterov: bool = False
    weight_decay: float = 0.0
    independent_weight_decay: bool = False  # decay by weight_decay times the schedule (big_vision), not times lr
    grad_clip: float | None = None  # maximum global gradient norm
    layer_decay: float = 1.0  # each block's lr is this times that of the block after it
    head_lr_scale: float = 1.0  # multiplies lr, for the classifier
    trainable: Literal["all", "blocks", "head"] = "all"  # the rest is frozen
    trainable_blocks: int = 0  # with trainable=blocks: how many of the last blocks, besides head and final norm
    muon_lr: float = 0.02  # Muon's lr for matrices; the rest uses lr
    muon_momentum: float = 0.95

    def __post_init__(self) -> None:
        validate(self)
        _check_positive(self, "optim.", "lr", "eps", "muon_lr", "grad_clip", "head_lr_scale")
        _check_fraction(self, "optim.", "momentum", "muon_momentum")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise VitrailError(f"optim.betas must be from 0 to below 1, got {self.betas}; try optim.betas=0.9,0.999")
        if self.weight_decay < 0 or self.trainable_blocks < 0:
            raise VitrailError("optim.weight_decay and optim.trainable_blocks must be at least 0; try 0")
        if not 0 < self.layer_decay <= 1:
            raise VitrailError(f"optim.layer_decay must be above 0 and at most 1, got {self.layer_decay}; try 0.75")
        if self.name == "sgd" and self.nesterov and not self.momentum:
            raise VitrailError("optim.nesterov looks ahead along the momentum, and optim.momentum is 0; try optim.momentum=0.9")
        if self.name == "sgd" and self.independent_weight_decay:  # torch's SGD has it in the gradient, and then in the momentum
            raise VitrailError(
                "optim.independent_weight_decay needs decoupled weight decay, which optim.name=sgd does not have"
            )


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up from 0 to lr in ``warmup_steps``, then decay to ``min_lr_ratio`` times lr."""

    kind: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    warmup_steps: int = 0
    cooldown_steps: int = 0  # last steps, linearly to the minimum (rsqrt, constant)
    min_lr_ratio: float = 0.0
    rsqrt_timescale: int = 10_000  # rsqrt only

    def __post_init__(self) -> None:
        validate(self)
        if min(self.warmup_steps, self.cooldown_steps) < 0 or self.rsqrt_timescale < 1:
            raise VitrailError(
                "schedule.warmup_steps and cooldown_steps must be at least 0, schedule.rsqrt_timescale at least 1"
            )
        _check_fraction(self, "schedule.", "min_lr_ratio")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run's result. ``vitrail.fit(recipe, folder)`` trains it."""

    name: str
    model: ModelConfig
    preprocess: Preprocess
    steps: int
    batch_size: int
    data: str = "fashion"
    columns: Columns = added(ANY_COLUMNS)  # noqa: RUF009  # of its targets, if it is a table
    val_fraction: float = 0.1  # fractions of train, if the dataset has no such split
    test_fraction: float = 0.1
    init_from: str | None = None  # initial weights; None: random initialisation
    init_sha256: str | None = None  # of those weights, so that a recipe always means the same ones
    keep_head: bool = False  # keep their classifier too, if the classes are the same
    augment: Policy = field(default_factory=Policy)
    optim: Optim = field(default_factory=Optim)
    schedule: Schedule = field(default_factory=Schedule)
    task: TaskConfig = field(default_factory=Classification)
    micro_batch_size: int | None = None  # per device; None: the whole batch, or what fits into memory
    ema_decay: float | None = None  # if set, the EMA weights are evaluated and saved
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"  # replicate the model on each process, or shard it
    activation_checkpointing: bool = False  # recompute activations in the backward pass
    seed: int = 0
    shuffle_window: int | None = None  # shuffle among so many neighbouring images; None: among all
    eval_every: int = 100  # steps between two evaluations on validation
    checkpoint_every: int = 100  # steps between two checkpoints
    keep_checkpoints: int = 2  # how many of the newest are kept
    early_stop_patience: int | None = None  # evaluations without improvement before stopping early
    max_bad_fraction: float = 0.05  # fraction of the images that may be unusable
    fold: Fold | None = added(None)  # noqa: RUF009  # the test split, of a cross-validation; the other folds are the rest

    def __post_init__(self) -> None:
        validate(self)
        counts = ("steps", "batch_size", "eval_every", "checkpoint_every", "keep_checkpoints")
        for name in (*counts, "micro_batch_size", "early_stop_patience", "shuffle_window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitrailError(f"{name} must be at least 1, got {value}; try {name}=1")
        _check_fraction(self, "", "ema_decay", "max_bad_fraction", "val_fraction", "test_fraction")
        if self.schedule.warmup_steps + self.schedule.cooldown_steps > self.steps:
            raise VitrailError(
                f"schedule.warmup_steps and cooldown_steps must fit into {self.steps} steps, got {self.schedule.warmup_steps} "
                f"and {self.schedule.cooldown_steps}; try schedule.warmup_steps={self.steps // 10}"
            )
        if self.model.image != self.preprocess.image_size or self.model.channels != len(self.preprocess.mean):
            raise VitrailError(
                f"model and preprocess must agree on the image, got {self.model.image} of {self.model.channels} channels and "
                f"{self.preprocess.image_size} of {len(self.preprocess.mean)}; change both"
            )
        jitter = [name for name in JITTER_FIELDS if self.preprocess.raw and getattr(self.augment, name)]
        if jitter:
            raise VitrailError(
                f"augment.{jitter[0]} is defined for 8-bit images, and these are bands; try augment.{jitter[0]}=0"
            )
        self.task.check(self.model, self.augment)
        _check_trainable(self)

    def with_steps(self, steps: int) -> "Recipe":
        """Return the recipe with another number of steps: warm-up, intervals and the EMA horizon scale with it."""
        ratio, shortest = steps / self.steps, min(MIN_INTERVAL, steps)
        schedule = self.schedule
        return replace(
            self,
            steps=steps,
            schedule=replace(
                schedule,
                warmup_steps=int(schedule.warmup_steps * ratio),
                cooldown_steps=int(schedule.cooldown_steps * ratio),
                rsqrt_timescale=max(int(schedule.rsqrt_timescale * ratio), 1),
            ),
            ema_decay=None if self.ema_decay is None else max(1 - (1 - self.ema_decay) / ratio, 0.0),
            eval_every=max(-(-self.eval_every * steps // self.steps), shortest),  # never more evaluations than before
            checkpoint_every=max(int(self.checkpoint_every * ratio), shortest),
        )


def override_recipe(recipe: Recipe, assignments: Sequence[str]) -> tuple[Recipe, list[str]]:
    """Return the recipe with overrides such as ``steps=12``, and a note if its warm-up had to be shortened to fit the steps."""
    assigned = {assignment.partition("=")[0].strip() for assignment in assignments}
    schedule, notes = recipe.schedule, list[str]()
    if "steps" in assigned and not assigned & {"schedule.warmup_steps", "schedule.cooldown_steps"}:
        without = replace(recipe, schedule=replace(schedule, warmup_steps=0, cooldown_steps=0))
        steps = override(without, assignments).steps
        if schedule.warmup_steps + schedule.cooldown_steps > steps:
            warmup, cooldown = min(schedule.warmup_steps, steps // 10), min(schedule.cooldown_steps, steps // 2)
            notes = [
                f"the warm-up is shortened from {schedule.warmup_steps:,} steps to {warmup:,}, to fit into {steps:,} steps"
            ]
            schedule = replace(schedule, warmup_steps=warmup, cooldown_steps=cooldown)
    return override(replace(recipe, schedule=schedule), assignments), notes


def _check_trainable(recipe: Recipe) -> None:
    optim, model = recipe.optim, recipe.model
    blocks = model.depth if isinstance(model, ViTConfig) else 0
    has_head = (
        model.classes > 0 or recipe.task.is_dense or (recipe.task.labelled and model.family == "vit" and model.head == "mlp")
    )
    if optim.trainable == "head" and not has_head:
        raise VitrailError("optim.trainable=head trains only the head, and this model has none; try optim.trainable=all")
    if optim.trainable == "blocks" and not blocks:
        raise VitrailError(
            "optim.trainable=blocks freezes all but the last blocks, and this model has none; try optim.trainable=head"
        )
    if optim.trainable == "blocks" and not 1 <= optim.trainable_blocks <= blocks:
        raise VitrailError(
            f"optim.trainable_blocks must be from 1 to {blocks}, the model's blocks, got {optim.trainable_blocks}; try 1"
        )


def _check_positive(settings: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise VitrailError(f"{prefix}{name} must be above 0, got {value}; try {prefix}{name}=0.001")


def _check_fraction(settings: object, prefix: str, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0 <= value < 1:
            raise VitrailError(f"{prefix}{name} must be from 0 to below 1, got {value}; try {prefix}{name}=0.1")
