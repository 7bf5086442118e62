"""Per-rank memory estimate of a training run, in bytes, from the recipe alone. Torch-free.

P parameters, of which T are trained and M are matrices of Muon; O of them outside of blocks, B in the largest block; world size
R; micro-batch size b; c bytes per number in compute, 4 in float32 and 2 in bfloat16.

    always                                           one process, DDP        FSDP2
    weights              parameters                  4 P                     / R
    gradients                                        4 T                     / R
    optimizer_state      AdamW                       8 T                     / R
                         SGD with momentum           4 T                     / R
                         Muon                        8 (T - M) + 4 M         / R
    ema                  if the recipe has it        4 P                     / R
    in forward and backward
    compute_copies       weights in compute dtype    2 P in bfloat16         4 O + 3 c B + 4 B
    accumulated_grads    with several micro-batches  4 T (not one process)   0
    activations          saved for backward          b x (what autograd saves per image)
    workspace            temporary                   b x (the maximum over stages)
    afterwards, without activations
    optimizer_workspace  Muon's temporaries          20 x (numbers in its largest group of matrices of one shape)
    eval_weights         before an evaluation        0                       4 P

    total = weights + gradients + optimizer_state + ema
          + max(compute_copies + accumulated_grads + activations + workspace, optimizer_workspace, eval_weights)

FSDP2 keeps what is outside of blocks gathered from its first use on, and two blocks, since the next is prefetched while one is
computed; a block's gradient exists whole, in c bytes and in the 4 that are sent. Between micro-batches DDP does not
communicate, and accumulates beside its buckets; FSDP2 reduces and scatters the gradients of each. DDP's buckets are the
gradients themselves. In one process and one micro-batch gradients appear as activations are freed, so the total is an upper
bound there.

In bfloat16, products and their inputs are half as large; the residual stream, the norms' inputs and statistics stay float32,
and so do convolutions, as a bound. With activation checkpointing, a block of the encoder saves only its input, and one block at
a time has all of its activations. Frozen stages save nothing. Dropout masks count as on a CPU, four times those of a GPU.
"""

from dataclasses import dataclass
from typing import Literal

from vitrail.errors import VitrailError
from vitrail.models.cost import Cost, cost
from vitrail.models.cost_masked import masked_cost
from vitrail.models.settings import ResNetConfig, ViTConfig
from vitrail.models.tally import FLOAT, Stage
from vitrail.train.recipe import Recipe

HALF = 2  # bytes of a bfloat16
MUON = 5  # copies of a group of matrices at the peak of an update
Way = Literal["single", "ddp", "fsdp"]


@dataclass(frozen=True)
class Held:
    """Bytes that one rank holds, by purpose."""

    weights: int
    gradients: int
    moments: int
    average: int
    copies: int
    summed: int
    activations: int
    working: int
    stepping: int
    looking: int

    @property
    def total(self) -> int:
        """Peak bytes."""
        learning = self.copies + self.summed + self.activations + self.working
        return self.weights + self.gradients + self.moments + self.average + max(learning, self.stepping, self.looking)


@dataclass(frozen=True)
class Weighed:
    """Counts of a recipe's model: parameters, bytes per image, and MACs per image."""

    parameters: int
    trained: int
    matrices: int
    alike: int  # numbers in the largest group of matrices of one shape
    outside: int
    block: int
    once: int  # bytes of activations that do not grow with the batch
    kept: int
    working: int
    macs: int
    backward: int  # MACs of the stages that gradients pass through
    again: int  # MACs that are recomputed in the backward pass

    @property
    def flops(self) -> int:
        """FLOPs to train on one image: a MAC is two, and the backward pass has two products for each one forward."""
        return 2 * self.macs + 4 * self.backward + 2 * self.again


def weigh(recipe: Recipe) -> Weighed:
    one, two = _cost(recipe, 1), _cost(recipe, 2)
    first = _first_trained(recipe, one.stages)
    learning = one.stages[first:]
    blocks = [stage for stage in learning if stage.name.startswith("block ") and recipe.recompute]
    grown = [_grown(recipe, *pair) for pair in zip(one.stages, two.stages, strict=True)]
    kept = grown[:1] if first else []  # the images themselves
    kept += [_inputs(stage) if stage in blocks else size for stage, size in zip(learning, grown[first:], strict=True)]
    inner = max(
        (size - _inputs(stage) for stage, size in zip(learning, grown[first:], strict=True) if stage in blocks), default=0
    )
    sets = _matrices(recipe)
    units = _units(recipe, one)
    return Weighed(
        parameters=one.parameters,
        trained=sum(stage.parameters for stage in learning),
        matrices=sum(sets),
        alike=max(sets, default=0),
        outside=one.parameters - sum(units),
        block=max(units, default=0),
        once=2 * one.memory.training - two.memory.training,
        kept=sum(kept) + inner,
        working=max(_alive(recipe, stage) for stage in one.stages[1:])
        * (FLOAT if _convolves(recipe) else _bytes(recipe))
        // FLOAT,
        macs=one.macs,
        backward=sum(stage.macs for stage in learning),
        again=sum(stage.macs for stage in blocks),
    )


def hold(recipe: Recipe, known: Weighed, way: Way, ranks: int, pictures: int, pieces: int = 1) -> Held:
    """Estimate the memory of a rank with micro-batches of so many images, and so many micro-batches per step."""
    parts = ranks if way == "fsdp" else 1
    whole, c = FLOAT * known.parameters, _bytes(recipe)
    copies = HALF * known.parameters if c == HALF else 0
    if way == "fsdp":
        copies = FLOAT * (known.outside + known.block) + 3 * c * known.block
    return Held(
        weights=-(-whole // parts),
        gradients=-(-FLOAT * known.trained // parts),
        moments=-(-FLOAT * _moments(recipe, known) // parts),
        average=0 if recipe.ema is None else -(-whole // parts),
        copies=copies,
        summed=FLOAT * known.trained if pieces > 1 and way == "ddp" else 0,
        activations=known.once + pictures * known.kept,
        working=pictures * known.working,
        stepping=MUON * FLOAT * known.alike if recipe.optim.kind == "muon" else 0,
        looking=whole if way == "fsdp" else 0,
    )


def most(recipe: Recipe, known: Weighed, way: Way, ranks: int, room: float, pieces: int = 1) -> int:
    """Return the largest micro-batch that fits into so many bytes; 0 if not even one image does."""
    empty = hold(recipe, known, way, ranks, 0, pieces)
    if empty.total > room:
        return 0
    beside = empty.weights + empty.gradients + empty.moments + empty.average + empty.copies + empty.summed + empty.activations
    return max(int((room - beside) // (known.kept + known.working)), 0)


def _cost(recipe: Recipe, batch: int) -> Cost:
    return cost(recipe.model, batch) if recipe.masking is None else masked_cost(recipe.model, recipe.masking, batch)


def _bytes(recipe: Recipe) -> int:
    return HALF if recipe.precision == "bfloat16" else FLOAT


def _convolves(recipe: Recipe) -> bool:
    return isinstance(recipe.model, ResNetConfig) or recipe.model.stem is not None


def _moments(recipe: Recipe, known: Weighed) -> int:
    if recipe.optim.kind == "sgd":
        return known.trained if recipe.optim.momentum else 0
    return 2 * known.trained - (known.matrices if recipe.optim.kind == "muon" else 0)


def _first_trained(recipe: Recipe, stages: tuple[Stage, ...]) -> int:
    """Index of the first stage with trained weights; those before it are frozen."""
    names, optim = [stage.name for stage in stages], recipe.optim
    if optim.train == "all":
        return 0
    if optim.train == "head":
        heads = [at for at, name in enumerate(names) if name in ("pre-logits", "head")]
        if not heads:
            raise VitrailError(
                "optim.trainable=head trains only the classifier, and this model has none; try optim.trainable=all"
            )
        return heads[0]
    depth = recipe.model.depth if isinstance(recipe.model, ViTConfig) else 0
    if not 1 <= optim.blocks <= depth:
        raise VitrailError(
            f"optim.trainable_blocks must be from 1 to {depth}, the model's blocks, got {optim.blocks}; try optim.trainable=all"
        )
    return names.index(f"block {depth - optim.blocks + 1}")


def _grown(recipe: Recipe, one: Stage, two: Stage) -> int:
    """Bytes that a stage saves per image."""
    size = two.training - one.training
    if recipe.precision == "float32":
        return size
    if one.name == "image":
        return size * (FLOAT + HALF) // FLOAT  # as loaded, and as multiplied
    if "block " not in one.name:
        return size
    _, tokens, width = one.shape
    full = FLOAT * tokens * (2 * (width + 2) + _heads(recipe, one))  # both norms' inputs and statistics, and the softmax's
    return full + (size - full) * HALF // FLOAT


def _heads(recipe: Recipe, block: Stage) -> int:
    if recipe.masking is not None and block.name.startswith("decoder"):
        return recipe.masking.decoder_heads
    return recipe.model.heads if isinstance(recipe.model, ViTConfig) else 0


def _alive(recipe: Recipe, stage: Stage) -> int:
    """Peak bytes within a stage. With gradients, the GELU of a block does not work in place."""
    if "block " not in stage.name or isinstance(recipe.model, ResNetConfig):
        return stage.inference
    _, tokens, width = stage.shape
    hidden = 4 * width if stage.name.startswith("decoder") else recipe.model.mlp
    return max(stage.inference, FLOAT * tokens * ((2 + (recipe.model.norm == "pre")) * width + 2 * hidden))


def _inputs(block: Stage) -> int:
    """Bytes of the input of a block that is recomputed."""
    _, tokens, width = block.shape
    return FLOAT * tokens * width


def _matrices(recipe: Recipe) -> list[int]:
    """Numbers in each group of blocks' matrices of one shape: q, k and v, W_O, up and down; empty without Muon."""
    model, masking, optim = recipe.model, recipe.masking, recipe.optim
    if optim.kind != "muon" or isinstance(model, ResNetConfig) or optim.train == "head":
        return []
    depth = optim.blocks if optim.train == "blocks" else model.depth
    kinds = [(depth, model.width, model.mlp)]
    if masking is not None and masking.method == "mae":
        kinds.append((masking.decoder_depth, masking.decoder_width, 4 * masking.decoder_width))
    return [depth * numbers for depth, d, m in kinds for numbers in (3 * d * d, d * d, d * m, d * m)]


def _units(recipe: Recipe, known: Cost) -> list[int]:
    """Parameters of each FSDP2 unit: blocks, or units of a ResNet, taken as equal within a stage."""
    if isinstance(recipe.model, ResNetConfig):
        stages = [stage for stage in known.stages if stage.name.startswith("stage ")]
        counts = zip(stages, recipe.model.stages, strict=True)
        return [stage.parameters // count for stage, count in counts for _ in range(count)]
    return [stage.parameters for stage in known.stages if "block " in stage.name]
