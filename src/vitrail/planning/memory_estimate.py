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
    workspace            temporary                   b x (the maximum over stages), and what does not grow with b
    afterwards, without activations
    optimizer_workspace  Muon's temporaries          20 x (numbers in its largest group of matrices of one shape)
    eval_weights         before an evaluation        0                       4 P

    total = weights + gradients + optimizer_state + ema
          + max(compute_copies + accumulated_grads + activations + workspace, optimizer_workspace, eval_weights)

FSDP2 keeps what is outside of blocks gathered from its first use on, and two blocks, since the next is prefetched while one is
computed; a block's gradient exists whole, in c bytes and in the 4 that are sent. Between micro-batches DDP does not
communicate, and accumulates outside of its buckets; FSDP2 reduces and scatters the gradients of each. DDP's buckets are the
gradients themselves. In one process and one micro-batch gradients appear as activations are freed, so the total is an upper
bound there.

In bfloat16, products and their inputs are half as large; the residual stream, the norms' inputs and statistics stay float32,
and so do convolutions, as a bound. With activation checkpointing, a block of the encoder saves only its input, and one block at
a time has all of its activations; relative biases are computed outside of the blocks and kept. Frozen stages save nothing.
Dropout masks count as on a CPU, four times those of a GPU.
"""

from dataclasses import dataclass
from typing import Literal

from vitrail.models.config import ResNetConfig, ViTConfig
from vitrail.models.cost import Cost
from vitrail.models.cost.attention import bias_floats
from vitrail.models.cost.counter import FLOAT_BYTES, Stage, norm_saved
from vitrail.recipes.recipe import Recipe

BFLOAT16_BYTES = 2  # bytes of a bfloat16
MANY_IMAGES = 2**50  # beside whose memory all that does not grow with the batch is less than a byte per image
MUON_COPIES = 5  # copies of a group of matrices at the peak of an update
Strategy = Literal["single", "ddp", "fsdp"]


@dataclass(frozen=True)
class MemoryBreakdown:
    """Memory of one rank in bytes, by purpose."""

    weights: int
    gradients: int
    optimizer_state: int
    ema: int
    compute_copies: int
    accumulated_grads: int
    activations: int
    workspace: int
    optimizer_workspace: int
    eval_weights: int

    @property
    def always(self) -> int:
        return self.weights + self.gradients + self.optimizer_state + self.ema

    @property
    def in_training(self) -> int:
        return self.compute_copies + self.accumulated_grads + self.activations + self.workspace

    @property
    def total(self) -> int:
        """Peak bytes."""
        return self.always + max(self.in_training, self.optimizer_workspace, self.eval_weights)


@dataclass(frozen=True)
class ModelCosts:
    """Counts of a recipe's model: parameters, bytes per image, and MACs per image."""

    parameters: int
    trainable: int
    muon_parameters: int
    largest_muon_group: int  # numbers in the largest group of matrices of one shape
    non_block: int
    largest_block: int
    fixed_bytes: int  # bytes of activations that do not grow with the batch
    bytes_per_image: int
    workspace_per_image: int
    workspace_fixed: int  # bytes of the workspace that do not grow with the batch
    macs: int
    backward_macs: int  # MACs of the stages that gradients pass through
    recomputed_macs: int  # MACs that are recomputed in the backward pass

    @property
    def flops(self) -> int:
        """FLOPs to train on one image: a MAC is two, and the backward pass has two products for each one forward."""
        return 2 * self.macs + 4 * self.backward_macs + 2 * self.recomputed_macs


def compute_model_costs(recipe: Recipe) -> ModelCosts:
    one_image, two_images, many_images = (_cost(recipe, batch) for batch in (1, 2, MANY_IMAGES))
    first_trained = _first_trained_stage(recipe, one_image.stages)
    trained_stages = one_image.stages[first_trained:]
    recomputed = [stage for stage in trained_stages if stage.name.startswith("block ") and recipe.activation_checkpointing]
    per_image = [_bytes_per_image(recipe, *pair) for pair in zip(one_image.stages, two_images.stages, strict=True)]
    saved_bytes, recomputed_bytes = per_image[:1] if first_trained else [], [0]  # the images themselves are always saved
    for stage, size in zip(trained_stages, per_image[first_trained:], strict=True):
        saved_bytes.append(_input_bytes(stage) if stage in recomputed else size)
        if stage in recomputed:
            recomputed_bytes.append(size - _input_bytes(stage))
    muon_groups = _muon_groups(recipe)
    fsdp_units = _fsdp_units(recipe, one_image)
    workspace, workspace_per_image = _workspace(recipe, one_image), _workspace(recipe, many_images) // MANY_IMAGES
    return ModelCosts(
        parameters=one_image.parameters,
        trainable=sum(stage.parameters for stage in trained_stages),
        muon_parameters=sum(muon_groups),
        largest_muon_group=max(muon_groups, default=0),
        non_block=one_image.parameters - sum(fsdp_units),
        largest_block=max(fsdp_units, default=0),
        fixed_bytes=2 * one_image.memory.training - two_images.memory.training + _kept_bias_bytes(recipe),
        bytes_per_image=sum(saved_bytes) + max(recomputed_bytes),
        workspace_per_image=workspace_per_image,
        workspace_fixed=workspace - workspace_per_image,
        macs=one_image.macs,
        backward_macs=sum(stage.macs for stage in trained_stages),
        recomputed_macs=sum(stage.macs for stage in recomputed),
    )


def estimate_memory(
    recipe: Recipe, costs: ModelCosts, strategy: Strategy, world_size: int, images: int, micro_batches: int = 1
) -> MemoryBreakdown:
    """Estimate the memory of a rank with micro-batches of so many images, and so many micro-batches per step."""
    shards = world_size if strategy == "fsdp" else 1
    weight_bytes, c = FLOAT_BYTES * costs.parameters, _compute_bytes(recipe)
    compute_copies = BFLOAT16_BYTES * costs.parameters if c == BFLOAT16_BYTES else 0
    if strategy == "fsdp":
        compute_copies = FLOAT_BYTES * (costs.non_block + costs.largest_block) + 3 * c * costs.largest_block
    return MemoryBreakdown(
        weights=-(-weight_bytes // shards),
        gradients=-(-FLOAT_BYTES * costs.trainable // shards),
        optimizer_state=-(-FLOAT_BYTES * _optimizer_state_numel(recipe, costs) // shards),
        ema=0 if recipe.ema_decay is None else -(-weight_bytes // shards),
        compute_copies=compute_copies,
        accumulated_grads=FLOAT_BYTES * costs.trainable if micro_batches > 1 and strategy == "ddp" else 0,
        activations=costs.fixed_bytes + images * costs.bytes_per_image,
        workspace=costs.workspace_fixed + images * costs.workspace_per_image,
        optimizer_workspace=MUON_COPIES * FLOAT_BYTES * costs.largest_muon_group if recipe.optim.name == "muon" else 0,
        eval_weights=weight_bytes if strategy == "fsdp" else 0,
    )


def max_micro_batch(
    recipe: Recipe, costs: ModelCosts, strategy: Strategy, world_size: int, budget: float, micro_batches: int = 1
) -> int:
    """Return the largest micro-batch that fits into so many bytes; 0 if not even one image does."""
    empty = estimate_memory(recipe, costs, strategy, world_size, 0, micro_batches)
    if empty.total > budget:
        return 0
    per_image = costs.bytes_per_image + costs.workspace_per_image
    return max(int((budget - empty.always - empty.in_training) // per_image), 0)


def _cost(recipe: Recipe, batch: int) -> Cost:
    return recipe.task.cost(recipe.model, batch)


def _compute_bytes(recipe: Recipe) -> int:
    return BFLOAT16_BYTES if recipe.precision == "bfloat16" else FLOAT_BYTES


def _has_convolutions(recipe: Recipe) -> bool:
    return isinstance(recipe.model, ResNetConfig) or recipe.model.stem is not None


def _optimizer_state_numel(recipe: Recipe, costs: ModelCosts) -> int:
    if recipe.optim.name == "sgd":
        return costs.trainable if recipe.optim.momentum else 0
    return 2 * costs.trainable - (costs.muon_parameters if recipe.optim.name == "muon" else 0)


def _first_trained_stage(recipe: Recipe, stages: tuple[Stage, ...]) -> int:
    """Index of the first stage with trained weights; those before it are frozen."""
    names, optim = [stage.name for stage in stages], recipe.optim
    if optim.trainable == "all":
        return 0
    if optim.trainable == "head":
        return names.index("pre-logits" if "pre-logits" in names else "head")
    blocks = [index for index, name in enumerate(names) if name.startswith("block ")]
    return blocks[-optim.trainable_blocks]


def _bytes_per_image(recipe: Recipe, one: Stage, two: Stage) -> int:
    """Bytes that a stage saves per image."""
    size = two.saved_bytes - one.saved_bytes
    if recipe.precision == "float32":
        return size
    if one.name == "image":
        return size * (FLOAT_BYTES + BFLOAT16_BYTES) // FLOAT_BYTES  # as loaded, and as multiplied
    if "block " not in one.name:
        return size
    _, tokens, _ = one.shape
    full = FLOAT_BYTES * tokens * (_norm_floats(recipe, one) + _num_heads(recipe, one))  # and the softmax's statistics
    return full + (size - full) * BFLOAT16_BYTES // FLOAT_BYTES


def _norm_floats(recipe: Recipe, block: Stage) -> int:
    """Floats per token that the norms of a block save: of both branches, queries and keys, heads' output, hidden layer."""
    model, width = recipe.model, block.shape[-1]
    if isinstance(model, ResNetConfig) or block.name.startswith("decoder"):
        return 2 * (width + norm_saved(1, width, "layer"))
    inside = (2 * width if model.qk_norm else 0, width if model.attention_norm else 0, model.mlp if model.mlp_norm else 0)
    return sum(each + norm_saved(1, each, model.norm_kind) for each in (width, width, *inside) if each)


def _num_heads(recipe: Recipe, block: Stage) -> int:
    decoder = recipe.task.decoder(recipe.model)
    if decoder is not None and block.name.startswith("decoder"):
        return decoder.heads
    return recipe.model.heads if isinstance(recipe.model, ViTConfig) else 0


def _workspace(recipe: Recipe, model_cost: Cost) -> int:
    """Peak bytes over the stages, of their batch."""
    peak = max(_peak_bytes(recipe, stage) for stage in model_cost.stages[1:])
    return peak * (FLOAT_BYTES if _has_convolutions(recipe) else _compute_bytes(recipe)) // FLOAT_BYTES


def _kept_bias_bytes(recipe: Recipe) -> int:
    """Bytes of the relative biases that the blocks keep as inputs, to be recomputed with them."""
    model = recipe.model
    if isinstance(model, ResNetConfig) or model.relative_bias is None or not recipe.activation_checkpointing:
        return 0
    return _compute_bytes(recipe) * bias_floats(model) * (1 if model.relative_bias.shared else model.depth)


def _peak_bytes(recipe: Recipe, stage: Stage) -> int:
    """Peak bytes within a stage. With gradients, the GELU of a block does not work in place."""
    if "block " not in stage.name or isinstance(recipe.model, ResNetConfig):
        return stage.peak_bytes
    batch, tokens, width = stage.shape
    hidden = 4 * width if stage.name.startswith("decoder") else recipe.model.mlp
    with_gradients = batch * tokens * ((2 + (recipe.model.norm == "pre")) * width + 2 * hidden)
    return max(stage.peak_bytes, FLOAT_BYTES * with_gradients)


def _input_bytes(block: Stage) -> int:
    """Bytes of the input of a block that is recomputed."""
    _, tokens, width = block.shape
    return FLOAT_BYTES * tokens * width


def _muon_groups(recipe: Recipe) -> list[int]:
    """Numbers in each group of blocks' matrices of one shape: q, k and v, W_O, up and down; empty without Muon."""
    model, optim = recipe.model, recipe.optim
    if optim.name != "muon" or isinstance(model, ResNetConfig):
        return []
    decoder = recipe.task.decoder(model)
    depth = {"all": model.depth, "blocks": optim.trainable_blocks, "head": 0}[optim.trainable]
    kinds = [(depth, model.width, model.mlp_outputs, model.mlp)]
    if decoder is not None:
        kinds.append((decoder.depth, decoder.width, 4 * decoder.width, 4 * decoder.width))
    return [depth * numbers for depth, d, up, m in kinds for numbers in (3 * d * d, d * d, d * up, d * m) if depth]


def _fsdp_units(recipe: Recipe, model_cost: Cost) -> list[int]:
    """Parameters of each FSDP2 unit: blocks, or units of a ResNet, taken as equal within a stage."""
    if isinstance(recipe.model, ResNetConfig):
        stages = [stage for stage in model_cost.stages if stage.name.startswith("stage ")]
        counts = zip(stages, recipe.model.stages, strict=True)
        return [stage.parameters // count for stage, count in counts for _ in range(count)]
    return [stage.parameters for stage in model_cost.stages if "block " in stage.name]
