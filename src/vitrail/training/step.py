"""One update of the weights, with gradient accumulation over micro-batches of this rank's part of the batch."""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from vitrail.data.loader import Batch
from vitrail.errors import VitrailError
from vitrail.recipes.recipe import Recipe
from vitrail.tasks.task import Task
from vitrail.training.optim import set_lr
from vitrail.training.parallel import full_tensor, grad_sync, to_local
from vitrail.training.schedule import lr_multiplier
from vitrail.training.state import TrainState, seed_step

CLIP_EPS = 1e-6  # torch's, added to the norm when clipping
OOM_MESSAGES = ("allocate memory", "out of memory", "not enough memory", "bad_alloc", "could not create a primitive")  # oneDNN


def train_step(state: TrainState, task: Task, batch: Batch, recipe: Recipe) -> dict[str, float]:
    """Accumulate gradients over the micro-batches, clip, update weights and EMA. A step that is not finite changes nothing.

    A batch of which no image could be read is a step without an update, and returns no metrics.
    """
    counts = [int(row[0]) for row in state.group.gather(len(batch.images))]  # images of each rank: some may be unreadable
    if not sum(counts):
        state.step += 1
        return {}
    multiplier = lr_multiplier(recipe.schedule, state.step, recipe.steps)
    set_lr(state.optimisers, recipe.optim, multiplier)
    metrics = _compute_gradients(state, task, _with_progress(batch, state.step, recipe), recipe, counts)
    gradients = [weight.grad for weight in state.model.parameters() if weight.grad is not None]
    total = full_tensor(torch.nn.utils.get_total_norm(gradients, foreach=True))
    norm = total.item()
    finite = math.isfinite(norm) and math.isfinite(metrics["loss"])
    if finite:
        if recipe.optim.grad_clip is not None:
            torch._foreach_mul_(to_local(gradients), (recipe.optim.grad_clip / (total + CLIP_EPS)).clamp(max=1.0))
        for optimiser in state.optimisers:
            optimiser.step()
    state.step += 1
    state.images += sum(counts)
    state.skipped_steps += not finite
    if finite and state.ema is not None:
        state.ema.update(state.model, state.step)
    return {**metrics, "lr": recipe.optim.lr * multiplier, "grad_norm": norm}


def _with_progress(batch: Batch, step: int, recipe: Recipe) -> Batch:
    """Return the batch with the fraction of the training that is done, for losses that change with it."""
    return replace(batch, progress=torch.full((len(batch.images),), step / recipe.steps))


def _compute_gradients(state: TrainState, task: Task, batch: Batch, recipe: Recipe, counts: list[int]) -> dict[str, float]:
    """Compute the gradients. When out of memory, retry with micro-batches half as large, and keep that size."""
    while True:
        seed_step(recipe.seed, state.step, state.group.rank)
        for optimiser in state.optimisers:
            optimiser.zero_grad(set_to_none=True)
        try:
            return _accumulate_gradients(state, task, batch, recipe, counts)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        # outside of the handler, where nothing refers to the activations of the failed attempt
        size = min(state.micro_batch_size or len(batch.images), len(batch.images))
        if state.group.world_size > 1:  # the other ranks are in the middle of the step
            raise VitrailError(
                f"{size} images at a time do not fit into a rank's memory; try micro_batch_size={max(size // 2, 1)}"
            )
        if size == 1:
            raise VitrailError("a single image does not fit into memory; try a smaller model or image size")
        state.micro_batch_size = -(-size // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in OOM_MESSAGES)
    )


def _accumulate_gradients(state: TrainState, task: Task, batch: Batch, recipe: Recipe, counts: list[int]) -> dict[str, float]:
    """Accumulate the gradients of all micro-batches, each weighted by its number of images: the last may be smaller. Ranks
    average their gradients and need equally many micro-batches: one with fewer images adds dummies of weight 0."""
    total: dict[str, float] = {}
    size = state.micro_batch_size or max(counts)
    num_micro_batches = -(-max(counts) // size)
    weighted = [(micro_batch, len(micro_batch.images)) for micro_batch in micro_batches(batch, size) if len(micro_batch.images)]
    weighted += [(_dummy_batch(batch), 0)] * (num_micro_batches - len(weighted))
    for index, (micro_batch, count) in enumerate(weighted):
        with grad_sync(state.wrapped_model, index + 1 == num_micro_batches):
            loss, extra = _loss(state, task, micro_batch, recipe)
            fraction = count / sum(counts)
            (loss * (fraction * len(counts)) if fraction * len(counts) != 1 else loss).backward()
        for name, value in {"loss": loss.detach(), **extra}.items():
            total[name] = total.get(name, 0.0) + (value.item() * fraction if count else 0.0)
    return dict(zip(total, state.group.all_sum(*total.values()), strict=True))


def _loss(state: TrainState, task: Task, micro_batch: Batch, recipe: Recipe) -> tuple[Tensor, dict[str, Tensor]]:
    device = next(state.model.parameters()).device.type
    with torch.autocast(device, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        return task.loss(state.wrapped_model, micro_batch)


def _dummy_batch(batch: Batch) -> Batch:
    """A batch of one black image."""
    targets = batch.targets.new_zeros(1, *batch.targets.shape[1:])
    return Batch(batch.images.new_zeros(1, *batch.images.shape[1:]), targets, batch.indices.new_zeros(1))


def micro_batches(batch: Batch, size: int) -> Iterator[Batch]:
    count = len(batch.images)
    if size >= count:
        yield batch
        return
    for start in range(0, count, size):
        values: dict[str, Any] = {item.name: getattr(batch, item.name) for item in fields(batch)}
        yield replace(batch, **{name: value[start : start + size] for name, value in values.items() if value is not None})


@torch.no_grad()
def find_nonfinite(state: TrainState, task: Task, batch: Batch, recipe: Recipe) -> str:
    """Describe where a step became NaN or Inf: the first module whose output is not finite or, if all outputs are finite, the
    weight whose gradient was the first that is not. Gradients run from the loss to the image, so that is the last one."""
    if state.group.any_rank(not batch.images.isfinite().all()):
        return "an image is"
    first_nonfinite: list[str] = []

    def check_output(name: str, output: object) -> None:
        if not first_nonfinite and isinstance(output, Tensor) and not output.isfinite().all():
            first_nonfinite.append(name)

    hooks = [
        module.register_forward_hook(lambda module, inputs, output, name=name: check_output(name, output))
        for name, module in state.model.named_modules()
        if name
    ]
    try:
        seed_step(recipe.seed, state.step - 1, state.group.rank)
        inspected = _batches_to_inspect(state, _with_progress(batch, state.step - 1, recipe))
        losses = [_loss(state, task, micro_batch, recipe)[0] for micro_batch in inspected]
    finally:
        for hook in hooks:
            hook.remove()
    gradients = {name: to_local([weight.grad])[0] for name, weight in state.model.named_parameters() if weight.grad is not None}
    nonfinite_grads = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    if first_nonfinite or nonfinite_grads:
        return f"the output of {first_nonfinite[0]} is" if first_nonfinite else f"the gradient of {nonfinite_grads[-1]} is"
    return "the norm of the gradient is" if all(loss.isfinite() for loss in losses) else "the loss is"


def _batches_to_inspect(state: TrainState, batch: Batch) -> Iterator[Batch]:
    """Yield the micro-batches to inspect. Ranks that shard the weights must run equally often, so each takes one."""
    candidates = micro_batches(batch, state.micro_batch_size or max(len(batch.images), 1))
    if state.group.world_size == 1:
        yield from candidates
    else:
        yield next((micro_batch for micro_batch in candidates if len(micro_batch.images)), None) or _dummy_batch(batch)
