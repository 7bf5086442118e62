"""``vitrail.fit``: from a recipe to a trained model. What it does can be stopped at any moment and goes on from there."""

import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data.check import Checked
from vitrail.data.loader import Batch, Loader, evaluation, training
from vitrail.data.sources.source import Part, Source
from vitrail.data.threads import cores
from vitrail.errors import VitrailError
from vitrail.models.device import device
from vitrail.models.masked import Masked
from vitrail.tasks.masked import Masks
from vitrail.train.checkpoint import checkpoints, read_checkpoint, write_checkpoint
from vitrail.train.data import faults, opened
from vitrail.train.facts import facts, logged
from vitrail.train.inside import inside
from vitrail.train.memory import fitting, free_memory
from vitrail.train.precision import check_machine
from vitrail.train.purpose import again, encoder_of, model_of, task_of
from vitrail.train.recipe import Recipe
from vitrail.train.run import Run, locked
from vitrail.train.settle import Pace, Wishes, pace, range_test, steps_in, with_lr
from vitrail.train.signals import Stopped, stopping
from vitrail.train.state import State, fresh
from vitrail.train.step import culprit, train_step
from vitrail.train.unlabelled import neighbours, reconstructions, seconds
from vitrail.train.watch import Silent, Watcher
from vitrail.weights.checkpoint import save

MOST_SKIPPED = 10  # steps in a row without a finite gradient
EVALUATED = 256  # pictures at a time


@dataclass(frozen=True)
class Machine:
    """Where a run is computed; nothing of it changes what is computed, but for the order of sums."""

    device: str = "auto"
    threads: int | None = None
    workers: int | None = None


def fit(
    recipe: Recipe,
    folder: str | Path,
    machine: Machine | None = None,
    watcher: Watcher | None = None,
    wishes: Wishes | None = None,
) -> dict[str, Any]:
    """Train, choose on validation, report on test; the answer is what ``result.json`` holds."""
    run, machine, watcher, wishes = Run(Path(folder)), machine or Machine(), watcher or Silent(), wishes or Wishes()
    with locked(run):
        done, noted = run.result(), run.noted()
        if noted is not None:
            recipe = wishes.adopt(recipe, noted)
            run.begin(recipe)
        if done is not None:
            watcher.said(f"{run.folder} is finished: nothing to do")
            return done
        if machine.threads:
            torch.set_num_threads(machine.threads)
        check_machine(recipe, device(machine.device).type)
        checked = opened(recipe, watcher.progress)
        for sentence in faults(checked):
            watcher.said(sentence)
        work = _Fit(recipe, run, machine, watcher, checked)
        if noted is None:
            work.settle(wishes)
            run.begin(work.recipe)
        return work.go()


class _Fit:
    """The parts of a run while it runs."""

    state: State

    def __init__(self, recipe: Recipe, run: Run, machine: Machine, watcher: Watcher, checked: Checked) -> None:
        self.recipe, self.run, self.watcher = recipe, run, watcher
        self.data, self.left_out = checked.data, len(checked.bad)
        self.workers = machine.workers
        self.device = device(machine.device)
        self.task = task_of(recipe, self.data)
        self.loader = self._training()
        self.pace: Pace | None = None

    def settle(self, wishes: Wishes) -> None:
        """Find out what is wished for, on weights that are thrown away, and fix it in the recipe."""
        workers = _workers(self.workers)
        if wishes.find_lr:
            tried = range_test(self.recipe, self._fresh, self.task, self._training(), workers, self.watcher.progress)
            self.watcher.said(f"the range test finds lr {tried.lr:g}; the recipe has {self.recipe.optim.lr:g}")
            self.run.keep_tried(vars(tried))
            self.recipe = with_lr(self.recipe, tried.lr)
        if wishes.minutes is None and not self.watcher.curious:
            return
        self.state = self._fresh()
        some = Part(self._chosen, np.arange(min(len(self._chosen), EVALUATED)))
        measured = pace(self.recipe, self._fresh, self.task, self._training(), self._looking(some), workers)
        self.pace = replace(measured, beside=self._beside(workers))
        if wishes.minutes is not None:
            steps = steps_in(wishes.minutes, self.recipe, self.pace, len(self._chosen), len(self.data.test))
            self.watcher.said(f"{steps:,} steps fit into {wishes.minutes:g} minutes; the recipe has {self.recipe.steps:,}")
            self.recipe = self.recipe.lasting(steps)

    def _beside(self, workers: int) -> float:
        model = self.state.shown
        return seconds(model, self.data.train, self._chosen, workers) if isinstance(model, Masked) else 0.0

    def go(self) -> dict[str, Any]:
        self.state = self._fresh()
        self._resume()
        self.watcher.planned(self.recipe, self.data, self.model.config, self.state, self._seconds())
        began, before, row = time.perf_counter(), self.state.seconds, 0
        self.state.model.train()
        last = self.state.step if self._over else self.recipe.steps  # it was over when the process ended
        with stopping() as stop:  # before it there is nothing to save, and behind it all is saved
            for batch in self.loader.batches(self.state.step, last, self.workers):
                fitted = self.state.micro
                numbers = train_step(self.state, self.task, batch, self.recipe)
                self.state.seconds = before + time.perf_counter() - began
                row = row + 1 if self.state.skipped and not _finite(numbers) else 0
                if self.state.micro != fitted:
                    self.watcher.said(f"the batch did not fit into memory: from here on {self.state.micro} pictures at a time")
                self._note(numbers, row, batch)
                if self._due(self.recipe.evaluate):
                    self._evaluate()
                if self._due(self.recipe.checkpoint) or stop.signal is not None or self._over:
                    self._save()
                if stop.signal is not None:
                    raise Stopped(stop.code, f"stopped at step {self.state.step}")
                if self._over:
                    break
        return self._result()

    @property
    def _over(self) -> bool:
        """Whether the last evaluations brought no improvement, more of them than the recipe has patience for."""
        patience = self.recipe.patience
        return patience is not None and self.state.step - self.state.best_step >= patience * self.recipe.evaluate

    @property
    def _chosen(self) -> Source:
        """What weights are chosen on."""
        return self.data.validation if len(self.data.validation) else self.data.train

    def _training(self) -> Loader:
        recipe = self.recipe
        return training(
            self.data.train, recipe.preprocess, recipe.batch, recipe.augment, recipe.seed, tolerated=recipe.tolerated
        )

    def _fresh(self) -> State:
        """The weights that the recipe begins with, on the device."""
        self.model = model_of(self.recipe, self.data, bool(checkpoints(self.run.checkpoints))).to(self.device)
        state = fresh(self.model, self.recipe)
        if self.recipe.micro is None and self.device.type == "cpu":
            most = fitting(self.model.config, self.recipe.batch, free_memory())
            state.micro = most if most < self.recipe.batch else None
        if self.recipe.compile:
            self.model.compile()
        return state

    def _seconds(self) -> float | None:
        """How long it will take from here, as far as that is known."""
        if self.state.step:
            return self.state.seconds / self.state.step * (self.recipe.steps - self.state.step)
        if self.pace is None:
            return None
        return self.pace.lasts(self.recipe, self.recipe.steps, len(self._chosen), len(self.data.test))

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

    def _note(self, numbers: dict[str, float], row: int, batch: Batch) -> None:
        line = {"step": self.state.step, **{name: _plain(value) for name, value in numbers.items()}}
        self.run.log(line)
        if numbers:
            self.watcher.stepped(self.state.step, numbers)
        else:
            self.watcher.said(f"step {self.state.step} had no picture that can be read")
        if row:
            why = f"{culprit(self.state, self.task, batch, self.recipe)} no number"
            self.watcher.said(f"step {self.state.step} was skipped: {why}")
            if row >= MOST_SKIPPED:
                self._save()
                raise VitrailError(
                    f"{row} steps in a row had to be skipped, the last since {why}; the last good weights are in "
                    f"{self.run.folder}; try a smaller optim.lr (now {self.recipe.optim.lr:g}) or optim.clip=1"
                )

    def _evaluate(self) -> None:
        scores = self.task.evaluate(self.state.shown, self._looking(self._chosen), _workers(self.workers))
        value = scores[self.task.main]
        better = self.state.best is None or (value < self.state.best if self.task.smaller else value > self.state.best)
        if better:
            self.state.best, self.state.best_step = value, self.state.step
            known = facts(self.recipe, self.data, self.state.step, validation=scores)
            save(self.state.shown, self.run.folder / "best", facts=known)  # type: ignore[arg-type]
        plain = {name: number for name, number in scores.items() if isinstance(number, float)}
        plain |= self._unlabelled()
        heads = inside(encoder_of(self.state.shown), self._chosen, self.recipe.preprocess)
        self.run.log({"step": self.state.step, "validation": plain, **({} if heads is None else {"heads": heads})})
        self.watcher.evaluated(self.state.step, plain, better)

    def _unlabelled(self) -> dict[str, float]:
        """What else is worth knowing, and seeing, where the loss alone says little."""
        model = self.state.shown
        if not isinstance(model, Masked) or not isinstance(self.task, Masks):
            return {}
        pictures = reconstructions(model, self.task, self._chosen, self.recipe.preprocess)
        if pictures:
            self.run.keep_reconstructions(self.state.step, pictures)
        alike = neighbours(model, self.data.train, self._chosen, _workers(self.workers))
        return {} if alike is None else {"knn": alike}

    def _looking(self, source: Source) -> Loader:
        """What fits when training fits here all the more."""
        loader = evaluation(source, self.recipe.preprocess, min(EVALUATED, self.state.micro or self.recipe.batch))
        return replace(loader, tolerated=self.recipe.tolerated)

    def _save(self) -> None:
        counters = {**self.state.counters(), **self._origin()}
        write_checkpoint(self.run.checkpoints, self.state.step, self.state.tensors(), counters, self.recipe.keep)

    def _result(self) -> dict[str, Any]:
        at, lines = self.state.step, self.run.lines()
        known = facts(self.recipe, self.data, at, validation=logged(lines, at))
        save(self.state.shown, self.run.folder / "last", facts=known)  # type: ignore[arg-type]
        best = again(self.run.folder / "best", self.recipe).to(self.device)
        split = next(name for name in ("test", "validation", "train") if len(self.data.splits[name]))
        scores = self.task.evaluate(best, self._looking(self.data.splits[split]), _workers(self.workers))
        at = self.state.best_step
        known = facts(self.recipe, self.data, at, **{"validation": logged(lines, at), split: scores})
        save(best, self.run.folder / "best", facts=known)  # type: ignore[arg-type]
        result = {
            "run": str(self.run.folder),
            "reported_on": split,
            split: {name: value for name, value in scores.items() if isinstance(value, float)},
            "chosen_on": "validation" if len(self.data.validation) else "train",
            "best": {"step": self.state.best_step, self.task.main: self.state.best},
            "steps": self.state.step,
            "seconds": self.state.seconds,
            "images_per_second": self.state.images / max(self.state.seconds, 1e-9),
            "skipped": self.state.skipped,
            "left_out": self.left_out + len(self.loader.problems),
        }
        answers = {name: value.numpy() for name, value in scores.items() if isinstance(value, torch.Tensor)}
        if answers:
            self.run.keep_predictions(answers)
        self.run.finish(result)
        return result


def _workers(asked: int | None) -> int:
    return min(cores(), 8) if asked is None else asked


def _finite(numbers: dict[str, float]) -> bool:
    return all(value - value == 0 for value in numbers.values())


def _plain(value: float) -> float | str:
    return value if value - value == 0 else str(value)
