"""What one rank of a run holds in memory, in bytes, from the recipe alone and without torch.

P weights, of which T are trained and M are matrices that Muon moves; O of them outside of blocks, B in the largest block; R
ranks; b pictures at a time; c bytes of a number that is computed with, 4 in float32 and 2 in bfloat16.

    held all along                          one process, DDP        FSDP2
    weights      parameters                 4 P                     / R
    gradients                               4 T                     / R
    moments      AdamW                      8 T                     / R
                 SGD with momentum          4 T                     / R
                 Muon                       8 (T - M) + 4 M         / R
    average      where the recipe has ema   4 P                     / R
    while learning, beside it
    copies       weights to compute with    2 P in bfloat16         4 O + 3 c B + 4 B
    summed       with several pieces        4 T (not one process)   0
    activations  kept for the way back      b x (what autograd keeps of a picture)
    working      alive for a moment         b x (the most of one stage)
    at its end, when activations are gone
    stepping     Muon's work                20 x (numbers in its largest set of matrices of one shape)
    looking      before an evaluation       0                       4 P

    total = weights + gradients + moments + average + max(copies + summed + activations + working, stepping, looking)

FSDP2 keeps what is outside of blocks together from its first use on, and two blocks, since the next is fetched while one is
computed; a block's gradient is there whole, in c bytes and in the 4 that are sent. Between the pieces of a batch ranks of DDP
do not talk, and sum beside their buckets; those of FSDP2 share out each piece's gradients. DDP's buckets are the gradients
themselves. In one process and one piece gradients come as activations go, so that the total is a bound from above there.

In bfloat16, products and what they read are half as large; the sums between blocks, the norms' inputs and statistics stay
float32, and so do convolutions, as a bound. With recompute, a block of the encoder keeps its input alone, and one block at a
time has all of it. Frozen stages keep nothing. Dropout's masks count as on a CPU, four times what a GPU keeps.
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
MUON = 5  # copies of the matrices of one shape that are alive at most in a step
Way = Literal["alone", "ddp", "fsdp"]


@dataclass(frozen=True)
class Held:
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
        """At the worst moment."""
        learning = self.copies + self.summed + self.activations + self.working
        return self.weights + self.gradients + self.moments + self.average + max(learning, self.stepping, self.looking)


@dataclass(frozen=True)
class Weighed:
    """A recipe's model: numbers of weights, bytes a picture, and multiply-adds a picture."""

    parameters: int
    trained: int
    matrices: int
    alike: int  # numbers in the largest set of matrices of one shape
    outside: int
    block: int
    once: int  # bytes of activations that do not grow with the pictures
    kept: int
    working: int
    macs: int
    backward: int  # those of the stages that gradients go through
    again: int  # those that are computed once more on the way back

    @property
    def flops(self) -> int:
        """To learn from one picture: a multiply-add is two, and the way back has two products for each one forward."""
        return 2 * self.macs + 4 * self.backward + 2 * self.again


def weigh(recipe: Recipe) -> Weighed:
    one, two = _cost(recipe, 1), _cost(recipe, 2)
    first = _first_trained(recipe, one.stages)
    learning = one.stages[first:]
    blocks = [stage for stage in learning if stage.name.startswith("block ") and recipe.recompute]
    grown = [_grown(recipe, *pair) for pair in zip(one.stages, two.stages, strict=True)]
    kept = grown[:1] if first else []  # the pictures themselves
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
    """With so many pictures at a time, in so many pieces of a rank's part of the batch."""
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
    """Pictures at a time that fit into so many bytes; 0 where not one does."""
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
    """The stage that gradients end at; what is in front of it is frozen."""
    names, optim = [stage.name for stage in stages], recipe.optim
    if optim.train == "all":
        return 0
    if optim.train == "head":
        heads = [at for at, name in enumerate(names) if name in ("pre-logits", "head")]
        if not heads:
            raise VitrailError("optim.train=head trains the classifier alone, and this model has none; try optim.train=all")
        return heads[0]
    depth = recipe.model.depth if isinstance(recipe.model, ViTConfig) else 0
    if not 1 <= optim.blocks <= depth:
        raise VitrailError(
            f"optim.blocks must be from 1 to {depth}, the model's blocks, got {optim.blocks}; try optim.train=all"
        )
    return names.index(f"block {depth - optim.blocks + 1}")


def _grown(recipe: Recipe, one: Stage, two: Stage) -> int:
    """Bytes that a stage keeps of each picture."""
    size = two.training - one.training
    if recipe.precision == "float32":
        return size
    if one.name == "image":
        return size * (FLOAT + HALF) // FLOAT  # as they came, and as they are multiplied
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
    """At most in one stage. Where a gradient is wanted, the GELU of a block does not work in place."""
    if "block " not in stage.name or isinstance(recipe.model, ResNetConfig):
        return stage.inference
    _, tokens, width = stage.shape
    hidden = 4 * width if stage.name.startswith("decoder") else recipe.model.mlp
    return max(stage.inference, FLOAT * tokens * ((2 + (recipe.model.norm == "pre")) * width + 2 * hidden))


def _inputs(block: Stage) -> int:
    """Of a block that is computed again."""
    _, tokens, width = block.shape
    return FLOAT * tokens * width


def _matrices(recipe: Recipe) -> list[int]:
    """Numbers in each set of blocks' matrices of one shape: q, k and v, W_O, up and down; none where nothing is Muon's."""
    model, masking, optim = recipe.model, recipe.masking, recipe.optim
    if optim.kind != "muon" or isinstance(model, ResNetConfig) or optim.train == "head":
        return []
    depth = optim.blocks if optim.train == "blocks" else model.depth
    kinds = [(depth, model.width, model.mlp)]
    if masking is not None and masking.method == "mae":
        kinds.append((masking.decoder_depth, masking.decoder_width, 4 * masking.decoder_width))
    return [depth * numbers for depth, d, m in kinds for numbers in (3 * d * d, d * d, d * m, d * m)]


def _units(recipe: Recipe, known: Cost) -> list[int]:
    """Weights of each part that FSDP2 brings together on its own: blocks, or units of a ResNet, all of a stage alike."""
    if isinstance(recipe.model, ResNetConfig):
        stages = [stage for stage in known.stages if stage.name.startswith("stage ")]
        counts = zip(stages, recipe.model.stages, strict=True)
        return [stage.parameters // count for stage, count in counts for _ in range(count)]
    return [stage.parameters for stage in known.stages if "block " in stage.name]
