"""Console output of a training run: a summary, then a progress bar on a terminal or plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vitrail.cli.screen import duration, si, size

if TYPE_CHECKING:
    from vitrail.train.recipe import Recipe

EVERY = 5.0  # seconds between two lines if stderr is not a terminal


def shown(name: str, value: float) -> str:
    """Format a score: a loss as a number, everything else as a percentage."""
    return f"{value:.4f}" if name in ("loss", "ece") else f"{value:.2%}"


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise instead of ending the process, as rich would."""
        raise BrokenPipeError


class Screen:
    """Progress display of a training run; implements the training loop's callback protocol."""

    def __init__(self, recipe: "Recipe", quiet: bool) -> None:
        self.recipe, self.quiet, self.curious = recipe, quiet, not quiet
        self.progress: Callable[[str, int, int | None], None] | None = None
        self.score, self.chosen_on = "", "validation"
        self.said_at = 0.0
        self.began: tuple[float, int] | None = None
        self.bar: Any = None
        self.task: Any = None
        self.before: dict[str, Any] = {}

    def __enter__(self) -> "Screen":
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        live = sys.stderr.isatty() and not self.quiet
        words = TextColumn("{task.description}")
        columns = (TextColumn("{task.fields[what]}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words)
        self.bar = Progress(*columns, console=_Console(stderr=True, markup=False), transient=True, disable=not live)
        self.bar.start()
        self.progress = self._before if live else None
        return self

    def __exit__(self, *_: object) -> None:
        with self._unheard():
            self.bar.stop()

    def _before(self, what: str, done: int, total: int | None) -> None:
        """Show progress of the work before the first step, such as reading the dataset."""
        if what not in self.before:
            self.before[what] = self.bar.add_task("", total=total, what=what)
        self.bar.update(self.before[what], completed=done, total=total)

    def planned(self, recipe: "Recipe", data: Any, model: Any, state: Any, seconds: float | None) -> None:
        from vitrail.models.cost import cost

        for task in self.before.values():
            self.bar.remove_task(task)
        self.before.clear()
        self.chosen_on = "validation" if len(data.validation) else "train"
        self.recipe = recipe  # its steps and learning rate may have been measured since
        self.task = self.bar.add_task("", total=recipe.steps, completed=state.step, what="step")
        known = cost(model, state.micro or recipe.batch)
        epochs = recipe.steps * recipe.batch / max(len(data.train), 1)
        counts = ", ".join(f"{len(part):,} {split}" for split, part in data.splits.items())
        classes = "without labels" if recipe.masking else f"{len(data.names)} classes"
        self.said(f"data      {data.name}: {counts}; {classes}")
        for note in data.notes:
            self.said(f"          {note}")
        work = f"{si(known.macs, 'MACs')} per image, about {size(known.memory.training)} of memory to train"
        self.said(f"model     {known.parameters:,} parameters, {work}")
        if recipe.masking:
            more = sum(weight.numel() for weight in state.model.parameters()) - known.parameters
            self.said(f"          {more:,} more parameters predict the masked patches; they are dropped after pre-training")
        amount = f"{recipe.steps:,} steps of {recipe.batch} images, {epochs:.1f} epochs"
        self.said(f"recipe    {recipe.name}: {amount}, {recipe.optim.kind}, lr {recipe.optim.lr:g}")
        if state.micro is not None and state.micro < recipe.batch:
            self.said(f"          micro-batches of {state.micro} images, to fit into memory")
        if seconds is not None:
            self.said(f"time      about {duration(seconds)} remaining")

    def stepped(self, step: int, numbers: dict[str, float]) -> None:
        now = time.perf_counter()
        self.began = self.began or (now, step)  # the first step is warm-up
        done = step - self.began[1]
        speed = f"  {done * self.recipe.batch / (now - self.began[0]):,.0f} images/s" if done else ""
        right = f"  {numbers['accuracy']:.1%}" if "accuracy" in numbers else ""
        text = f"loss {numbers['loss']:.3f}{right}{speed}{self.score}"
        self.bar.update(self.task, completed=step, description=text)
        if self.bar.disable and not self.quiet and now - self.said_at > EVERY:
            self.said_at = now
            self.said(f"step {step:,} of {self.recipe.steps:,}  {text}")

    def evaluated(self, step: int, scores: dict[str, float], best: bool) -> None:
        main = "top1" if "top1" in scores else "loss"
        self.score = f"  {self.chosen_on} {shown(main, scores[main])}"
        named = "" if main == "top1" else f"{main} "
        more = "".join(f", {name} {shown(name, scores[name])}" for name in ("loss", "knn") if name in scores and name != main)
        self.said(f"step {step:,}: {self.chosen_on} {named}{shown(main, scores[main])}{more}{' (best)' if best else ''}")

    def said(self, sentence: str) -> None:
        if not self.quiet:
            with self._unheard():
                self.bar.console.print(sentence, soft_wrap=True, highlight=False)

    @contextmanager
    def _unheard(self) -> Iterator[None]:
        """Silence the output, but do not end the run, if the terminal or the pipe was closed."""
        try:
            yield
        except OSError:
            self.quiet = True
