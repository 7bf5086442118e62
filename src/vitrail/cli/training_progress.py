"""Console output of a training run: a summary, then a progress bar on a terminal or plain lines elsewhere."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vitrail.cli.console import format_bytes, format_duration, format_si
from vitrail.cli.options import column_options

if TYPE_CHECKING:
    from vitrail.recipes.recipe import Recipe

LOG_INTERVAL = 5.0  # seconds between two lines if stderr is not a terminal


def format_score(value: float | str, is_fraction: bool) -> str:
    """Format a score: a fraction from 0 to 1 as a percentage, or a dash if it is undefined; such as a loss as a number."""
    value = float(value)  # NaN is text in JSON
    if is_fraction:
        return "–" if math.isnan(value) else f"{value:.2%}"
    return f"{value:.4f}"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise instead of ending the process, as rich would."""
        raise BrokenPipeError


class ProgressDisplay:
    """Progress display of a training run; implements the training loop's callback protocol."""

    def __init__(self, recipe: "Recipe", quiet: bool) -> None:
        self.recipe, self.quiet, self.wants_eta = recipe, quiet, not quiet
        self.progress: Callable[[str, int, int | None], None] | None = None
        self.score_text, self.selected_on = "", "validation"
        self.last_message_at = 0.0
        self.started_at: tuple[float, int] | None = None
        self.bar: Any = None
        self.task: Any = None  # of the progress bar
        self.metrics: Any = None  # the task that the run trains
        self.setup_tasks: dict[str, Any] = {}

    def __enter__(self) -> "ProgressDisplay":
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        live = sys.stderr.isatty() and not self.quiet
        description = TextColumn("{task.description}")
        columns = (
            TextColumn("{task.fields[task_name]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            description,
        )
        self.bar = Progress(*columns, console=_Console(stderr=True, markup=False), transient=True, disable=not live)
        self.bar.start()
        self.progress = self._on_setup_progress if live else None
        return self

    def __exit__(self, *_: object) -> None:
        with self._ignore_closed_output():
            self.bar.stop()

    def _on_setup_progress(self, name: str, done: int, total: int | None) -> None:
        """Show progress of the work before the first step, such as reading the dataset."""
        if name not in self.setup_tasks:
            self.setup_tasks[name] = self.bar.add_task("", total=total, task_name=name)
        self.bar.update(self.setup_tasks[name], completed=done, total=total)

    def on_start(self, recipe: "Recipe", data: Any, state: Any, eta_seconds: float | None) -> None:
        from vitrail.models.cost import cost
        from vitrail.tasks.registry import build_task

        for task in self.setup_tasks.values():
            self.bar.remove_task(task)
        self.setup_tasks.clear()
        self.selected_on = "validation" if len(data.validation) else "train"
        self.recipe = recipe  # its steps and learning rate may have been measured since
        self.task = self.bar.add_task("", total=recipe.steps, completed=state.step, task_name="step")
        self.metrics = build_task(recipe.task, recipe.model, recipe.preprocess)
        costs = cost(recipe.model)
        epochs = recipe.steps * recipe.batch_size / max(len(data.train), 1)
        counts = ", ".join(f"{len(part):,} {split}" for split, part in data.splits.items())
        self.on_message(f"data      {data.name}: {counts}; {_targets_text(recipe, len(data.class_names))}")
        for note in data.notes:
            self.on_message(f"          {column_options(note)}")
        cost_text = (
            f"{format_si(costs.macs, 'MACs')} per image, about {format_bytes(_memory(recipe, state))} of memory to train"
        )
        self.on_message(f"model     {costs.parameters:,} parameters, {cost_text}")
        if extra := sum(weight.numel() for weight in state.model.parameters()) - costs.parameters:
            self.on_message(f"          {extra:,} more parameters {recipe.task.decoder_note}")
        duration_text = f"{recipe.steps:,} step{'s' * (recipe.steps != 1)} of {recipe.batch_size} images, {epochs:.1f} epochs"
        self.on_message(f"recipe    {recipe.name}: {duration_text}, {recipe.optim.name}, lr {recipe.optim.lr:g}")
        if state.micro_batch_size is not None and state.micro_batch_size < recipe.batch_size:
            self.on_message(f"          micro-batches of {state.micro_batch_size} images, to fit into memory")
        if eta_seconds is not None:
            self.on_message(f"time      about {format_duration(eta_seconds)} remaining")

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        now = time.perf_counter()
        self.started_at = self.started_at or (now, step)  # the first step is warm-up
        done = step - self.started_at[1]
        speed = f"  {done * self.recipe.batch_size / (now - self.started_at[0]):,.0f} images/s" if done else ""
        accuracy = f"  {metrics['accuracy']:.1%}" if "accuracy" in metrics else ""
        text = f"loss {metrics['loss']:.3f}{accuracy}{speed}{self.score_text}"
        self.bar.update(self.task, completed=step, description=text)
        if self.bar.disable and not self.quiet and now - self.last_message_at > LOG_INTERVAL:
            self.last_message_at = now
            self.on_message(f"step {step:,} of {self.recipe.steps:,}  {text}")

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        task, texts = self.metrics, {}
        for name in (task.primary_metric, "loss", "knn"):
            if name in metrics:
                texts[name] = format_score(metrics[name], name in task.fractions)
        primary = texts.pop(task.primary_metric)
        self.score_text = f"  {self.selected_on} {primary}"
        label = "" if task.primary_metric == "top1" else f"{task.primary_metric} "
        others = "".join(f", {name} {text}" for name, text in texts.items())
        self.on_message(f"step {step:,}: {self.selected_on} {label}{primary}{others}{' (best)' if is_best else ''}")

    def on_checkpoint(self, step: int, path: Path) -> None: ...

    def on_end(self, result: dict[str, Any]) -> None: ...

    def on_message(self, message: str) -> None:
        if not self.quiet:
            with self._ignore_closed_output():
                self.bar.console.print(message, soft_wrap=True, highlight=False)

    @contextmanager
    def _ignore_closed_output(self) -> Iterator[None]:
        """Silence the output, but do not end the run, if the terminal or the pipe was closed."""
        try:
            yield
        except OSError:
            self.quiet = True


def _targets_text(recipe: "Recipe", classes: int) -> str:
    if recipe.task.labelled:
        return f"{classes} classes"
    if recipe.task.has_masks:
        return f"{classes} classes of pixels"
    outputs = recipe.model.classes
    return f"{outputs} output{'s' * (outputs != 1)}" if recipe.task.has_targets else "without labels"


def _memory(recipe: "Recipe", state: Any) -> int:
    """Estimate the bytes of a rank as ``vitrail plan`` does, for the strategy and micro-batch that the run has chosen."""
    from vitrail.planning.memory_estimate import Strategy, compute_model_costs, estimate_memory
    from vitrail.training.parallel import is_sharded

    ranks = state.group.world_size
    strategy: Strategy = "single" if ranks == 1 else "fsdp" if is_sharded(state.model) else "ddp"
    batch = recipe.batch_size // ranks
    images = min(state.micro_batch_size or batch, batch)
    return estimate_memory(recipe, compute_model_costs(recipe), strategy, ranks, images, -(-batch // images)).total
