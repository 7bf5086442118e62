"""``vitrail.fit``: from a recipe to a trained model. What it does can be stopped at any moment and goes on from there."""

import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from vitrail.data.check import Checked, usable
from vitrail.data.loader import Loader, evaluation, training
from vitrail.data.sources.open import pictures
from vitrail.data.sources.split import Shares
from vitrail.data.threads import cores
from vitrail.errors import VitrailError
from vitrail.models.build import Model, build
from vitrail.tasks.classify import Classify, class_weights
from vitrail.tasks.task import Task
from vitrail.train.checkpoint import read_checkpoint, write_checkpoint
from vitrail.train.recipe import Recipe
from vitrail.train.run import Run, locked
from vitrail.train.signals import Stop, Stopped, stopping
from vitrail.train.state import fresh
from vitrail.train.step import culprit, train_step
from vitrail.train.watch import Silent, Watcher
from vitrail.weights.checkpoint import save
from vitrail.weights.load import load

MOST_SKIPPED = 10  # steps in a row without a finite gradient
EVALUATED = 256  # pictures at a time


@dataclass(frozen=True)
class Machine:
    """Where a run is computed; nothing of it changes what is computed, but for the order of sums."""

    device: str = "auto"
    threads: int | None = None
    workers: int | None = None


def fit(recipe: Recipe, folder: str | Path, machine: Machine | None = None, watcher: Watcher | None = None) -> dict[str, Any]:
    """Train, choose on validation, report on test; the answer is what ``result.json`` holds."""
    run, machine, watcher = Run(Path(folder)), machine or Machine(), watcher or Silent()
    with locked(run), stopping() as stop:
        done = run.result()
        run.begin(recipe)
        if done is not None:
            watcher.said(f"{run.folder} is finished: nothing to do")
            return done
        if machine.threads:
            torch.set_num_threads(machine.threads)
        checked = usable(
            pictures(recipe.data, shares=Shares(recipe.validation, recipe.test), progress=watcher.progress), watcher.progress
        )
        return _Fit(recipe, run, machine, watcher, checked, stop).go()


class _Fit:
    """The parts of a run while it runs."""

    def __init__(self, recipe: Recipe, run: Run, machine: Machine, watcher: Watcher, checked: Checked, stop: Stop) -> None:
        self.recipe, self.run, self.watcher, self.stop = recipe, run, watcher, stop
        self.data = checked.data
        self.workers = machine.workers
        self.device = device(machine.device)
        self.model = self._built()
        self.state = fresh(self.model, recipe)
        self.task: Task = self._task()
        self.loader = training(
            self.data.train, recipe.preprocess, recipe.batch, recipe.augment, recipe.seed, tolerated=recipe.tolerated
        )

    def go(self) -> dict[str, Any]:
        self._resume()
        self.watcher.planned(self.recipe, self.data, self.model, self.state)
        if self.recipe.compile:
            self.model.compile()
        began, before, row = time.perf_counter(), self.state.seconds, 0
        self.model.train()
        batches = self.loader.batches(self.state.step, self.recipe.steps, self.workers)
        for batch in batches:
            numbers = train_step(self.state, self.task, batch, self.recipe)
            self.state.seconds = before + time.perf_counter() - began
            row = row + 1 if self.state.skipped and not _finite(numbers) else 0
            self._note(numbers, row)
            finished = self._evaluate() if self._due(self.recipe.evaluate) else False
            if self._due(self.recipe.checkpoint) or self.stop.signal is not None or finished:
                self._save()
            if self.stop.signal is not None:
                raise Stopped(self.stop.code, f"stopped at step {self.state.step}; the same command goes on from there")
            if finished:
                break
        return self._result()

    def _built(self) -> Model:
        recipe = self.recipe
        torch.manual_seed(recipe.seed)
        if recipe.start is None:
            model = build(replace(recipe.model, classes=len(self.data.names)))
        else:
            model = load(recipe.start, image=recipe.model.image, classes=len(self.data.names))
        model.preprocess, model.labels = recipe.preprocess, self.data.names
        return model.to(self.device)

    def _task(self) -> Task:
        classes = len(self.data.names)
        if classes < 2:
            raise VitrailError(f"{self.data.name} has {classes} class; to tell something apart takes two")
        weights = class_weights(torch.from_numpy(self.data.train.labels), classes) if self.recipe.class_weights else None
        return Classify(classes, self.recipe.loss, self.recipe.smoothing, weights)

    def _resume(self) -> None:
        found = read_checkpoint(self.run.checkpoints)
        if found is None:
            self.run.rewind(-1)
            return
        tensors, counters, damaged = found
        for sentence in damaged:
            self.watcher.said(sentence)
        for name, now in self._origin().items():
            if counters.get(name) != now:
                if name == "data":
                    raise VitrailError(
                        f"{self.run.folder} was begun on other pictures or labels; give this data a folder of its own"
                    )
                self.watcher.said(
                    f"{name} was {counters.get(name)} when the run was begun and is {now}: it goes on, perhaps not to the bit"
                )
        self.state.restore(tensors, counters)
        self.run.rewind(self.state.step)
        self.watcher.said(f"goes on from step {self.state.step}")

    def _origin(self) -> dict[str, str]:
        return {"data": self.data.fingerprint, "vitrail": version("vitrail"), "torch": torch.__version__}

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.recipe.steps

    def _note(self, numbers: dict[str, float], row: int) -> None:
        line = {"step": self.state.step, **{name: _plain(value) for name, value in numbers.items()}}
        self.run.log(line)
        self.watcher.stepped(self.state.step, numbers)
        if row:
            self.watcher.said(f"step {self.state.step} was skipped: the gradient of {culprit(self.state)} is no number")
        if row >= MOST_SKIPPED:
            raise VitrailError(
                f"the gradient of {culprit(self.state)} was no number {row} steps in a row; the last good weights are in "
                f"{self.run.folder}; try a smaller optim.lr (now {self.recipe.optim.lr:g}) or optim.clip=1"
            )

    def _evaluate(self) -> bool:
        """Whether to stop early."""
        source = self.data.validation if len(self.data.validation) else self.data.train
        scores = self.task.evaluate(self.state.shown, self._looking(source), _workers(self.workers))
        value = scores[self.task.main]
        better = self.state.best is None or value > self.state.best
        if better:
            self.state.best, self.state.best_step = value, self.state.step
            save(self.state.shown, self.run.folder / "best")  # type: ignore[arg-type]
        plain = {name: number for name, number in scores.items() if isinstance(number, float)}
        self.run.log({"step": self.state.step, "validation": plain})
        self.watcher.evaluated(self.state.step, plain, better)
        patience = self.recipe.patience
        return patience is not None and self.state.step - self.state.best_step >= patience * self.recipe.evaluate

    def _looking(self, source: Any) -> Loader:
        return evaluation(source, self.recipe.preprocess, EVALUATED)

    def _save(self) -> None:
        counters = {**self.state.counters(), **self._origin()}
        write_checkpoint(self.run.checkpoints, self.state.step, self.state.tensors(), counters, self.recipe.keep)

    def _result(self) -> dict[str, Any]:
        save(self.state.shown, self.run.folder / "last")  # type: ignore[arg-type]
        best = load(self.run.folder / "best").to(self.device)
        split = "test" if len(self.data.test) else "validation"
        scores = self.task.evaluate(best, self._looking(self.data.splits[split]), _workers(self.workers))
        result = {
            "run": str(self.run.folder),
            "reported_on": split,
            split: {name: value for name, value in scores.items() if isinstance(value, float)},
            "best": {"step": self.state.best_step, self.task.main: self.state.best},
            "steps": self.state.step,
            "seconds": self.state.seconds,
            "images_per_second": self.state.images / max(self.state.seconds, 1e-9),
            "skipped": self.state.skipped,
            "left_out": len(self.loader.problems),
        }
        self.run.keep_predictions({name: value.numpy() for name, value in scores.items() if isinstance(value, torch.Tensor)})
        self.run.finish(result)
        return result


def device(name: str) -> torch.device:
    """The best there is, or the one that is named."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise VitrailError(f"the device {name!r} cannot be used ({str(error).splitlines()[0]}); try cpu") from None


def _workers(asked: int | None) -> int:
    return min(cores(), 8) if asked is None else asked


def _finite(numbers: dict[str, float]) -> bool:
    return all(value - value == 0 for value in numbers.values())


def _plain(value: float) -> float | str:
    return value if value - value == 0 else str(value)
