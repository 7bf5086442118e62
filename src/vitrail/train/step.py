"""One update of the weights. b pictures of the batch, computed in pieces."""

import math
from collections.abc import Iterator
from dataclasses import fields

import torch
from torch import Tensor

from vitrail.data.loader import Batch
from vitrail.errors import VitrailError
from vitrail.tasks.task import Task
from vitrail.train.memory import refused
from vitrail.train.optim import set_rate
from vitrail.train.recipe import Recipe
from vitrail.train.schedule import rate
from vitrail.train.state import State, seed_step


def train_step(state: State, task: Task, batch: Batch, recipe: Recipe) -> dict[str, float]:
    """Loss and gradient over the pieces, clip, update, follow with the average. One that is no number changes nothing.

    A batch of which no picture could be read is a step without an update, and has no numbers.
    """
    if not len(batch.labels):
        state.step += 1
        return {}
    share = rate(recipe.schedule, state.step, recipe.steps)
    set_rate(state.optimisers, recipe.optim, share)
    seen = _gradients(state, task, batch, recipe)
    weights = [weight for weight in state.model.parameters() if weight.grad is not None]
    total = torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None], foreach=True)
    norm = total.item()
    good = math.isfinite(norm) and math.isfinite(seen["loss"])
    if good:
        if recipe.optim.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(weights, recipe.optim.clip, total, foreach=True)
        for optimiser in state.optimisers:
            optimiser.step()
    state.step += 1
    state.images += len(batch.labels)
    state.skipped += not good
    if good and state.average is not None:
        state.average.follow(state.model, state.step)
    return {**seen, "lr": recipe.optim.lr * share, "gradient": norm}


def _gradients(state: State, task: Task, batch: Batch, recipe: Recipe) -> dict[str, float]:
    """Where memory does not suffice, the step is begun again in pieces half as large, and so are all that follow."""
    while True:
        seed_step(recipe.seed, state.step)
        for optimiser in state.optimisers:
            optimiser.zero_grad(set_to_none=True)
        try:
            return _summed(state, task, batch, recipe)
        except (MemoryError, RuntimeError) as error:
            if not refused(error):
                raise
        # behind the handler, where nothing holds on to the activations of the failed try any more
        size = min(state.micro or len(batch.labels), len(batch.labels))
        if size == 1:
            raise VitrailError("one picture at a time does not fit into memory; try a smaller --model or --image")
        state.micro = -(-size // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _summed(state: State, task: Task, batch: Batch, recipe: Recipe) -> dict[str, float]:
    """Each piece counts by its number of pictures, so that the last one may be shorter."""
    total: dict[str, float] = {}
    whole = len(batch.labels)
    for piece in pieces(batch, state.micro or whole):
        loss, others = _loss(state, task, piece, recipe)
        part = len(piece.labels) / whole
        (loss * part if part < 1 else loss).backward()
        for name, value in {"loss": loss.detach(), **others}.items():
            total[name] = total.get(name, 0.0) + value.item() * part
    return total


def _loss(state: State, task: Task, piece: Batch, recipe: Recipe) -> tuple[Tensor, dict[str, Tensor]]:
    device = next(state.model.parameters()).device.type
    with torch.autocast(device, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
        return task.loss(state.model, piece)


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
    """Where a step went wrong, in words: the first module whose output is no number or, where all outputs are numbers, the
    weight whose gradient was the first that is none. A gradient runs from the loss to the picture, so that is the last one."""
    if not batch.images.isfinite().all():
        return "a picture is"
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
        seed_step(recipe.seed, state.step - 1)
        losses = [_loss(state, task, piece, recipe)[0] for piece in pieces(batch, state.micro or len(batch.labels))]
    finally:
        for hook in hooks:
            hook.remove()
    wrong = [
        name for name, weight in state.model.named_parameters() if weight.grad is not None and not weight.grad.isfinite().all()
    ]
    if first or wrong:
        return f"the output of {first[0]} is" if first else f"the gradient of {wrong[-1]} is"
    return "the norm of the gradient is" if all(loss.isfinite() for loss in losses) else "the loss is"
