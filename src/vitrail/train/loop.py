"""``vitrail.fit``: train the model of a recipe. A run can be stopped at any moment and is resumed from its checkpoint."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.data.check import Checked
from vitrail.data.loader import Batch, Loader, training
from vitrail.data.sources.source import Part
from vitrail.data.threads import cores
from vitrail.errors import VitrailError
from vitrail.models.device import device
from vitrail.train.checkpoint import Found, Writer, checkpoints, fill, find_checkpoint
from vitrail.train.data import faults, opened
from vitrail.train.distributed import chosen
from vitrail.train.facts import facts, logged
from vitrail.train.looks import EVALUATED, Looks
from vitrail.train.memory import fitting
from vitrail.train.precision import check_machine
from vitrail.train.purpose import again, encoder_of, model_of, task_of
from vitrail.train.recipe import Recipe
from vitrail.train.run import ReadOnly, Run, locked
from vitrail.train.settle import Pace, Wishes, pace, range_test, steps_in, with_lr
from vitrail.train.signals import Stopped, stopping
from vitrail.train.state import State, fresh
from vitrail.train.step import culprit, train_step
from vitrail.train.team import Lost, Team, joined, reason, silent
from vitrail.train.watch import Silent, Watcher
from vitrail.weights.checkpoint import save

MOST_SKIPPED = 10  # consecutive steps without a finite gradient


@dataclass(frozen=True)
class Machine:
    """Device, CPU threads and data workers of a run. They change nothing of the result but the order of sums."""

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
    """Train, select the best weights on validation, report on test. Return the contents of ``result.json``."""
    with joined() as team:
        return _fit(recipe, Path(folder), machine or Machine(), watcher or Silent(), wishes or Wishes(), team)


def _fit(recipe: Recipe, folder: Path, machine: Machine, watcher: Watcher, wishes: Wishes, team: Team) -> dict[str, Any]:
    run = Run(folder) if team.first else ReadOnly(folder)
    watcher = watcher if team.first else Silent()
    with locked(run) if team.first else nullcontext():
        team.wait()  # for the lock
        done, noted = run.result(), run.noted()
        team.wait()  # all have read the run before the main process writes to it
        if noted is not None:
            recipe = wishes.adopt(recipe, noted)
            run.begin(recipe)
        if done is not None:
            watcher.said(f"{run.folder} is finished: nothing to do")
            return done
        if machine.threads:
            torch.set_num_threads(machine.threads)
        check_machine(recipe, device(machine.device).type)
        with team.in_turn():
            checked = opened(recipe, watcher.progress)
        for sentence in faults(checked):
            watcher.said(sentence)
        work = _Fit(recipe, run, machine, watcher, checked, team)
        if noted is None:
            work.settle(wishes)
            run.begin(work.recipe)
        return work.go()


class Diverged(VitrailError):
    """The recipe is valid, but its training diverged."""


class _Fit:
    """Trains one run, from its first step or its last checkpoint to its result."""

    state: State

    def __init__(self, recipe: Recipe, run: Run, machine: Machine, watcher: Watcher, checked: Checked, team: Team) -> None:
        self.recipe, self.run, self.watcher, self.team = recipe, run, watcher, team
        self.data, self.left_out = checked.data, len(checked.bad)
        self.workers, self.device = machine.workers, device(machine.device)
        self.writer = Writer(run.checkpoints, recipe.keep, team)
        self.task = task_of(recipe, self.data)
        self.looks = Looks(recipe, self.data, self.task, team, self.device, _workers(machine.workers))
        self.loader = self._training()
        self.pace: Pace | None = None

    def settle(self, wishes: Wishes) -> None:
        """Measure what was left open, on weights that are discarded, and fix it in the recipe."""
        looks, workers = self.looks, self.looks.workers
        if wishes.find_lr:
            tried = range_test(self.recipe, self._fresh, self.task, self._training(), workers, self.watcher.progress)
            self.watcher.said(f"the range test finds lr {tried.lr:g}; the recipe has {self.recipe.optim.lr:g}")
            self.run.keep_tried(vars(tried))
            self.recipe = with_lr(self.recipe, tried.lr)
        if wishes.minutes is None and not self.team.any(self.watcher.curious):
            return
        self.state = self._fresh()
        some = looks.loader(Part(looks.chosen, np.arange(min(len(looks.chosen), EVALUATED))), self.state)
        measured = pace(self.recipe, self._fresh, self.task, self._training(), some, workers, looks.shown)
        slowest = self.team.everyone(measured.step, measured.picture, looks.seconds(looks.shown(self.state)))
        self.pace = Pace(*map(max, zip(*slowest, strict=True)))
        if wishes.minutes is not None:
            steps = steps_in(wishes.minutes, self.recipe, self.pace, len(looks.chosen), len(self.data.test))
            self.watcher.said(f"{steps:,} steps fit into {wishes.minutes:g} minutes; the recipe has {self.recipe.steps:,}")
            self.recipe = self.recipe.lasting(steps)

    def go(self) -> dict[str, Any]:
        self.state = self._fresh()
        self._resume()
        self.watcher.planned(self.recipe, self.data, self.model.config, self.state, self._seconds())
        try:
            self._learn()
            return self._result()
        except RuntimeError as error:
            if self.team.ranks == 1 or not silent(error):
                raise
            raise self._lost(error) from None

    def _lost(self, error: RuntimeError) -> Exception:
        there = checkpoints(self.run.checkpoints)
        last = f"the last checkpoint is {there[0].name}" if there else "there is no checkpoint yet"
        return Lost(
            f"rank {self.team.rank} lost contact with the other ranks at step {self.state.step}: one has exited or does not "
            f"respond; {last}, and the same command resumes from there ({reason(error)})"
        )

    def _learn(self) -> None:
        began, before, row = time.perf_counter(), self.state.seconds, 0
        self.state.model.train()
        last = self.state.step if self._over else self.recipe.steps  # it had stopped early when the process ended
        with stopping(patient=self.team.ranks > 1) as stop:  # nothing to save before it, all saved after it
            for batch in self.loader.batches(self.state.step, last, self.workers):
                fitted = self.state.micro
                numbers = train_step(self.state, self.task, batch, self.recipe)
                self.state.seconds = before + time.perf_counter() - began
                row = row + 1 if self.state.skipped and not _finite(numbers) else 0
                if self.state.micro != fitted:
                    self.watcher.said(f"the batch did not fit into memory: now micro-batches of {self.state.micro} images")
                self._note(numbers, row, batch)
                if self._due(self.recipe.evaluate):
                    self._evaluate()
                asked = int(self.team.most(stop.signal or 0))  # whichever rank received it
                if self._due(self.recipe.checkpoint) or asked or self._over:
                    self._save()
                self.writer.check()
                if asked:
                    self._written()
                    raise Stopped(128 + asked, f"stopped at step {self.state.step}")
                if self._over:
                    break
            self._written()

    def _written(self) -> None:
        """Wait until the last checkpoint is complete: the launcher ends all ranks when the first one exits."""
        self.writer.wait()
        self.team.wait()

    @property
    def _over(self) -> bool:
        """Whether the recipe's patience is exhausted: so many evaluations without improvement."""
        patience = self.recipe.patience
        return patience is not None and self.state.step - self.state.best_step >= patience * self.recipe.evaluate

    def _training(self) -> Loader:
        recipe = self.recipe
        return training(
            self.data.train, recipe.preprocess, recipe.batch, recipe.augment, recipe.seed,
            rank=self.team.rank, ranks=self.team.ranks, tolerated=recipe.tolerated, window=recipe.window,
        )  # fmt: skip

    def _fresh(self) -> State:
        """Create the initial state of the recipe, on the device."""
        with self.team.in_turn():
            self.model = model_of(self.recipe, self.data, bool(checkpoints(self.run.checkpoints))).to(self.device)
        encoder_of(self.model).checkpointing = self.recipe.recompute  # type: ignore[assignment]
        parallel = chosen(self.recipe.parallel, self.model.config, self.device, self.team)
        state = fresh(self.model, replace(self.recipe, parallel=parallel), self.team)
        share = self.recipe.batch // self.team.ranks
        if self.recipe.micro is None and self.device.type == "cpu":
            parts = self.team.ranks if parallel == "fsdp" else 1
            most = int(self.team.least(fitting(self.model.config, share, self.team.free(self.device), parts)))
            state.micro = most if most < share else None
        if self.recipe.compile:
            self.model.compile()
        return state

    def _seconds(self) -> float | None:
        """Estimate the seconds left; None if nothing was measured yet."""
        if self.state.step:
            return self.state.seconds / self.state.step * (self.recipe.steps - self.state.step)
        if self.pace is None:
            return None
        return self.pace.lasts(self.recipe, self.recipe.steps, len(self.looks.chosen), len(self.data.test))

    def _resume(self) -> None:
        found = self._found()
        if found is None:
            self.run.rewind(-1)
            return
        counters = found.counters
        for sentence in found.damaged:
            self.watcher.said(sentence)
        for name, now in self._origin().items():
            if counters.get(name) != now:
                if name == "data":
                    raise VitrailError(
                        f"{self.run.folder} was started on other images or labels; use another folder for this dataset"
                    )
                self.watcher.said(
                    f"{name} was {counters.get(name)} when the run was started and is {now}: resuming, perhaps not bit for bit"
                )
        fill(found.path, self.state.places, self.team)
        self.state.restore(counters)
        self.run.rewind(self.state.step)
        self.watcher.said(f"resumed from step {self.state.step}")

    def _found(self) -> Found | None:
        """Find the newest valid checkpoint. The main process verifies the hashes, the others take its result."""
        found = find_checkpoint(self.run.checkpoints) if self.team.first else None
        self.team.wait()  # reading them all may take long
        path = self.team.told(lambda: "" if found is None else str(found.path))
        return found or (Found(Path(path)) if path else None)

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
            self.watcher.said(f"no image of step {self.state.step} could be read")
        if row:
            why = f"{self._culprit(batch)} not finite (NaN/Inf)"
            self.watcher.said(f"step {self.state.step} was skipped: {why}")
            if row >= MOST_SKIPPED:
                self._save()
                self.writer.wait()
                raise Diverged(
                    f"{row} consecutive steps were skipped, the last since {why}; the last good weights are in "
                    f"{self.run.folder}; try a smaller optim.lr (now {self.recipe.optim.lr:g}) or optim.grad_clip=1"
                )

    def _culprit(self, batch: Batch) -> str:
        found = culprit(self.state, self.task, batch, self.recipe)
        if self.team.ranks == 1:
            return found
        words = self.team.texts(found)
        return next((each for each in words if each.startswith(("an image", "the output"))), words[0])

    def _evaluate(self) -> None:
        model = self.looks.shown(self.state)
        scores = self.looks.scores(model, self.looks.chosen, self.state)
        value = scores[self.task.main]
        better = self.state.best is None or (value < self.state.best if self.task.smaller else value > self.state.best)
        if better:
            self.state.best, self.state.best_step = value, self.state.step
            known = facts(self.recipe, self.data, self.state.step, validation=scores)
            self._keep(model, "best", known)
        plain = {name: number for name, number in scores.items() if isinstance(number, float)}
        plain |= self.looks.unlabelled(model, self.run, self.state.step)
        heads = self.looks.heads(model)
        self.run.log({"step": self.state.step, "validation": plain, **({} if heads is None else {"attention_stats": heads})})
        self.watcher.evaluated(self.state.step, plain, better)

    def _save(self) -> None:
        counters = {**self.state.counters(), **self._origin()}
        self.writer.write(self.state.step, self.state.tensors(), counters)

    def _problems(self) -> int:
        """Count the images that any rank could not read."""
        return len(self.team.rows(torch.tensor(list(self.loader.problems), dtype=torch.int64)).unique())

    def _keep(self, model: nn.Module, name: str, known: dict[str, Any]) -> None:
        if self.team.first:
            save(model, self.run.folder / name, facts=known)  # type: ignore[arg-type]

    def _result(self) -> dict[str, Any]:
        at, lines = self.state.step, self.run.lines()
        known = facts(self.recipe, self.data, at, validation=logged(lines, at))
        self._keep(self.looks.shown(self.state), "last", known)
        self.team.wait()  # for what the main process has written
        best = again(self.run.folder / "best", self.recipe).to(self.device)
        split = next(name for name in ("test", "validation", "train") if len(self.data.splits[name]))
        scores = self.looks.scores(best, self.data.splits[split], self.state)
        at = self.state.best_step
        known = facts(self.recipe, self.data, at, **{"validation": logged(lines, at), split: scores})
        self._keep(best, "best", known)
        result = {
            "run": str(self.run.folder),
            "reported_on": split,
            split: {name: value for name, value in scores.items() if isinstance(value, float)},
            "selected_on": "validation" if len(self.data.validation) else "train",
            "best": {"step": self.state.best_step, self.task.main: self.state.best},
            "steps": self.state.step,
            "seconds": self.state.seconds,
            "images_per_second": self.state.images / max(self.state.seconds, 1e-9),
            "skipped_steps": self.state.skipped,
            "unreadable_images": self.left_out + self._problems(),
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
