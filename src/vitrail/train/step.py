"""One update of the weights, with gradient accumulation over micro-batches of this rank's part of the batch."""

import math
from collections.abc import Iterator
from dataclasses import fields

import torch
from torch import Tensor

from vitrail.data.loader import Batch
from vitrail.errors import VitrailError
from vitrail.tasks.task import Task
from vitrail.train.distributed import local, syncing, whole
from vitrail.train.memory import refused
from vitrail.train.optim import set_rate
from vitrail.train.recipe import Recipe
from vitrail.train.schedule import rate
from vitrail.train.state import State, seed_step

TINY = 1e-6  # torch's, added to the norm when clipping


def train_step(state: State, task: Task, batch: Batch, recipe: Recipe) -> dict[str, float]:
    """Accumulate gradients over the micro-batches, clip, update weights and EMA. A step that is not finite changes nothing.

    A batch of which no image could be read is a step without an update, and returns no metrics.
    """
    counts = [int(row[0]) for row in state.team.everyone(len(batch.labels))]  # images of each rank: some may be unreadable
    if not sum(counts):
        state.step += 1
        return {}
    share = rate(recipe.schedule, state.step, recipe.steps)
    set_rate(state.optimisers, recipe.optim, share)
    seen = _gradients(state, task, batch, recipe, counts)
    gradients = [weight.grad for weight in state.model.parameters() if weight.grad is not None]
    total = whole(torch.nn.utils.get_total_norm(gradients, foreach=True))
    norm = total.item()
    good = math.isfinite(norm) and math.isfinite(seen["loss"])
    if good:
        if recipe.optim.clip is not None:
            torch._foreach_mul_(local(gradients), (recipe.optim.clip / (total + TINY)).clamp(max=1.0))
        for optimiser in state.optimisers:
            optimiser.step()
    state.step += 1
    state.images += sum(counts)
    state.skipped += not good
    if good and state.average is not None:
        state.average.follow(state.model, state.step)
    return {**seen, "lr": recipe.optim.lr * share, "grad_norm": norm}


def _gradients(state: State, task: Task, batch: Batch, recipe: Recipe, counts: list[int]) -> dict[str, float]:
    """Compute the gradients. When out of memory, retry with micro-batches half as large, and keep that size."""
    while True:
        seed_step(recipe.seed, state.step, state.team.rank)
        for optimiser in state.optimisers:
            optimiser.zero_grad(set_to_none=True)
        try:
            return _summed(state, task, batch, recipe, counts)
        except (MemoryError, RuntimeError) as error:
            if not refused(error):
                raise
        # outside of the handler, where nothing refers to the activations of the failed attempt
        size = min(state.micro or len(batch.labels), len(batch.labels))
        if state.team.ranks > 1:  # the other ranks are in the middle of the step
            raise VitrailError(
                f"{size} images at a time do not fit into a rank's memory; try --set micro_batch_size={max(size // 2, 1)}"
            )
        if size == 1:
            raise VitrailError("a single image does not fit into memory; try a smaller --model or --image")
        state.micro = -(-size // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _summed(state: State, task: Task, batch: Batch, recipe: Recipe, counts: list[int]) -> dict[str, float]:
    """Accumulate the gradients of all micro-batches, each weighted by its number of images: the last may be smaller. Ranks
    average their gradients and need equally many micro-batches: one with fewer images adds dummies of weight 0."""
    total: dict[str, float] = {}
    size = state.micro or max(counts)
    times = -(-max(counts) // size)
    parts = [(piece, len(piece.labels)) for piece in pieces(batch, size) if len(piece.labels)]
    parts += [(_blank(batch), 0)] * (times - len(parts))
    for number, (piece, count) in enumerate(parts):
        with syncing(state.module, number + 1 == times):
            loss, others = _loss(state, task, piece, recipe)
            part = count / sum(counts)
            (loss * (part * len(counts)) if part * len(counts) != 1 else loss).backward()
        for name, value in {"loss": loss.detach(), **others}.items():
            total[name] = total.get(name, 0.0) + (value.item() * part if count else 0.0)
    return dict(zip(total, state.team.sums(*total.values()), strict=True))


def _loss(state: State, task: Task, piece: Batch, recipe: Recipe) -> tuple[Tensor, dict[str, Tensor]]:
    device = next(state.model.parameters()).device.type
    with torch.autocast(device, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        return task.loss(state.module, piece)


def _blank(batch: Batch) -> Batch:
    """A batch of one black image."""
    return Batch(batch.images.new_zeros(1, *batch.images.shape[1:]), batch.labels.new_zeros(1), batch.indices.new_zeros(1))


def pieces(batch: Batch, size: int) -> Iterator[Batch]:
    count = len(batch.labels)
    if size >= count:
        yield batch
        return
    for start in range(0, count, size):
        values: dict[str, Tensor | None] = {item.name: getattr(batch, item.name) for item in fields(batch)}
        yield Batch(**{name: None if value is None else value[start : start + size] for name, value in values.items()})  # type: ignore[arg-type]


@torch.no_grad()
def culprit(state: State, task: Task, batch: Batch, recipe: Recipe) -> str:
    """Describe where a step became NaN or Inf: the first module whose output is not finite or, if all outputs are finite, the
    weight whose gradient was the first that is not. Gradients run from the loss to the image, so that is the last one."""
    if state.team.any(not batch.images.isfinite().all()):
        return "an image is"
    first: list[str] = []

    def look(name: str, output: object) -> None:
        if not first and isinstance(output, Tensor) and not output.isfinite().all():
            first.append(name)

    hooks = [
        module.register_forward_hook(lambda module, inputs, output, name=name: look(name, output))
        for name, module in state.model.named_modules()
        if name
    ]
    try:
        seed_step(recipe.seed, state.step - 1, state.team.rank)
        losses = [_loss(state, task, piece, recipe)[0] for piece in _looked_at(state, batch)]
    finally:
        for hook in hooks:
            hook.remove()
    gradients = {name: local([weight.grad])[0] for name, weight in state.model.named_parameters() if weight.grad is not None}
    wrong = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    if first or wrong:
        return f"the output of {first[0]} is" if first else f"the gradient of {wrong[-1]} is"
    return "the norm of the gradient is" if all(loss.isfinite() for loss in losses) else "the loss is"


def _looked_at(state: State, batch: Batch) -> Iterator[Batch]:
    """Yield the micro-batches to inspect. Ranks that shard the weights must run equally often, so each takes one."""
    found = pieces(batch, state.micro or max(len(batch.labels), 1))
    if state.team.ranks == 1:
        yield from found
    else:
        yield next((piece for piece in found if len(piece.labels)), None) or _blank(batch)
