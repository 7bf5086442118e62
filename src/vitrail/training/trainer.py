"""``vitrail.fit``: train the model of a recipe. A run can be stopped at any moment and is resumed from its checkpoint."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.data.batch_transforms import ImageTransform
from vitrail.data.dataset_check import DatasetReport
from vitrail.data.loader import Batch, Loader, build_train_loader
from vitrail.data.sources.image_like import describe_value
from vitrail.errors import VitrailError, first_line
from vitrail.models.build import get_encoder
from vitrail.recipes.recipe import Recipe
from vitrail.system import available_cores, select_device
from vitrail.tasks.task import Loss
from vitrail.training.autotune import AutoTune, AutoTuner, StepTiming
from vitrail.training.build import build_model, recipe_task, reload_model
from vitrail.training.callbacks import Callback, CallbackList, LogCallback
from vitrail.training.checkpoint import Checkpointer, list_checkpoints, own_functions, resume_from_checkpoint
from vitrail.training.crop_warning import crop_warning
from vitrail.training.dataset import check_training_data, data_warnings, open_training_data
from vitrail.training.evaluator import Evaluator
from vitrail.training.hardware_check import check_hardware
from vitrail.training.parallel import fit_to_memory
from vitrail.training.process_group import PeerLost, ProcessGroup, is_comm_failure, process_group
from vitrail.training.run import ReadOnlyRun, Run, choose_folder, lock_run, run_metadata
from vitrail.training.run_log import finite_or_text
from vitrail.training.signals import TrainingStopped, handle_stop_signals
from vitrail.training.state import TrainState, create_state
from vitrail.training.step import find_nonfinite, train_step
from vitrail.training.trained_run import TrainedRun
from vitrail.weights.save import save

MAX_SKIPPED_STEPS = 10  # consecutive steps without a finite gradient


@dataclass(frozen=True)
class Hardware:
    """Device, CPU threads and data workers of a run. They change nothing of the result but the order of sums."""

    device: str = "auto"
    threads: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("threads", self.threads, 1), ("workers", self.workers, 0)):
            if value is not None and (not isinstance(value, int) or value < least):
                raise VitrailError(f"{name} must be a whole number from {least}, got {value!r}; try {name}=2")


class TrainingDiverged(VitrailError):
    """The recipe is valid, but its training diverged."""


def fit(
    recipe: Recipe,
    folder: str | Path | None = None,
    data: Any = None,
    *,
    hardware: Hardware | None = None,
    callbacks: Iterable[Callback] = (),
    autotune: AutoTune | None = None,
    transform: ImageTransform | None = None,
    loss: Loss | None = None,
    group: ProcessGroup | None = None,
) -> TrainedRun:
    """Train, select the best weights on validation, report on test. An interrupted run in the folder is resumed.

    ``data`` is the dataset, open or anything that ``open_dataset`` takes; None: the one that the recipe names. ``transform``
    replaces the recipe's augmentation of an image, ``loss`` the task's loss. ``group``: the processes of the run; None: those
    that ``torchrun`` has started.
    """
    if not isinstance(recipe, Recipe):
        raise VitrailError(
            f"recipe must be a complete Recipe, got {describe_value(recipe)}; try vitrail.train(data, recipe='small')"
        )
    start, hardware, autotune = time.monotonic(), hardware or Hardware(), autotune or AutoTune()
    with process_group() if group is None else nullcontext(group) as group, open_run(recipe.name, folder, group) as run:
        if (plan := run.fold_plan()) is not None:
            raise VitrailError(
                f"{run.folder} is a cross-validation with folds={plan.folds}; name another folder for a single run"
            )
        callback = CallbackList([LogCallback(run), *callbacks] if group.is_main else [])
        result, saved_recipe = run.result(), run.saved_recipe()
        group.barrier()  # all have read the run before the main process writes to it
        if saved_recipe is not None:
            recipe = autotune.apply_saved(recipe, saved_recipe)
            run.record_recipe(recipe)
        if result is not None:
            callback.on_message(f"{run.folder} is finished: nothing to do")
            return TrainedRun(run, result)
        if hardware.threads:
            torch.set_num_threads(hardware.threads)
        check_hardware(recipe, select_device(hardware.device).type)
        with group.local_main_first():
            opened = open_training_data(recipe, callback.progress, data)
            report = check_training_data(opened, recipe, callback.progress)
        trainer = Trainer(recipe, run, hardware, callback, report, group, transform, loss)
        if saved_recipe is None:
            trainer.autotune(autotune, start)
            run.record_recipe(trainer.recipe)
        return TrainedRun(run, trainer.fit(), report.data)


@contextmanager
def open_run(name: str, folder: str | Path | None, group: ProcessGroup) -> Iterator[Run]:
    """Lock the run in a folder, by default the next free one of this name, for all ranks; the main process writes to it."""
    path = choose_folder(folder, name, group)
    run = Run(path) if group.is_main else ReadOnlyRun(path)
    with lock_run(run) if group.is_main else nullcontext():
        group.barrier()  # for the lock
        yield run


class Trainer:
    """Trains one run, from its first step or its last checkpoint to its result."""

    state: TrainState

    def __init__(
        self,
        recipe: Recipe,
        run: Run,
        hardware: Hardware,
        callback: Callback,
        report: DatasetReport,
        group: ProcessGroup,
        transform: ImageTransform | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.recipe, self.run, self.callback, self.group, self.transform = recipe, run, callback, group, transform
        self.data, self.unreadable_images = report.data, len(report.bad)
        self.image_size = np.median(report.image_sizes["train"], axis=0).astype(int).tolist()
        self.workers = min(available_cores(), 8) if hardware.workers is None else hardware.workers
        self.device = select_device(hardware.device)
        self.checkpointer = Checkpointer(run.checkpoints, recipe.keep_checkpoints, group)
        self.task = recipe_task(recipe, self.data, loss)
        self.evaluator = Evaluator(recipe, self.data, self.task, run, group, self.device, self.workers)
        self.loader = self.train_loader()
        self.timing: StepTiming | None = None
        self.deadline: float | None = None  # of training, by ``time.monotonic``
        self.skipped_in_a_row = 0
        self.provenance = {"data": self.data.fingerprint, "vitrail": version("vitrail"), "torch": torch.__version__}
        self.provenance |= own_functions(transform, loss)
        for warning in (*data_warnings(report), *crop_warning(report, recipe.preprocess)):
            callback.on_message(warning)

    def autotune(self, options: AutoTune, start: float) -> None:
        """Measure what was left open, on weights that are discarded, and fix it in the recipe. ``start``: when it began."""
        tuner = AutoTuner(self.recipe, self.task, self.evaluator, self.callback, self.create_state, self.train_loader)
        self.recipe, self.timing, self.deadline = tuner.tune(options, start)

    def fit(self) -> dict[str, Any]:
        """Train to the last step, and return the result."""
        try:
            self.state = self.create_state()
            self._resume()
            self.callback.on_start(self.recipe, self.data, self.state, self._seconds_left())
            self._train()
            result = self._result()
        except RuntimeError as error:
            if self.group.world_size == 1 or not is_comm_failure(error):
                raise
            raise self._peer_lost(error) from None
        self.callback.on_end(result)
        return result

    def _train(self) -> None:
        last_step = self.state.step if self._early_stop else self.recipe.steps  # it had stopped early when the process ended
        self.state.model.train()
        self.clock_start = time.perf_counter() - self.state.seconds
        stop_signal = 0
        # around the steps alone: there is nothing to save before them, and all is saved after them
        with handle_stop_signals(ignore_repeats=self.group.world_size > 1) as stop:
            for batch in self.loader.batches(self.state.step, last_step, self.workers):
                self._step(batch)
                out_of_time = self._out_of_time()
                if self._is_due(self.recipe.eval_every) or out_of_time:
                    self._evaluate()
                stop_signal = int(self.group.all_max(stop.signal or 0))  # whichever rank received it
                is_over = bool(stop_signal) or out_of_time or self._early_stop
                if self._is_due(self.recipe.checkpoint_every) or is_over:
                    self._save_checkpoint()
                self.checkpointer.raise_if_failed()
                if is_over:
                    break
            # the launcher ends all ranks when the first one exits: wait until the last checkpoint is complete
            self.checkpointer.wait()
            self.group.barrier()
        if stop_signal:
            raise TrainingStopped(128 + stop_signal, f"stopped at step {self.state.step}")

    def _step(self, batch: Batch) -> None:
        """Update the weights, and report the step."""
        micro_batch_size, skipped_before = self.state.micro_batch_size, self.state.skipped_steps
        metrics = train_step(self.state, self.task, batch, self.recipe)
        self.state.seconds = time.perf_counter() - self.clock_start
        if self.state.micro_batch_size != micro_batch_size:
            self.callback.on_message(
                f"the batch did not fit into memory: now micro-batches of {self.state.micro_batch_size} images"
            )
        if metrics:
            self.callback.on_step(self.state.step, metrics)
        else:
            self.run.log({"step": self.state.step})
            self.callback.on_message(f"no image of step {self.state.step} could be read")
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if self.state.skipped_steps > skipped_before else 0
        if self.skipped_in_a_row:
            self._report_skipped(batch)

    def _evaluate(self) -> None:
        """Evaluate on validation, and save the weights if they are the best so far."""
        model = self.evaluator.eval_model(self.state)
        scores = self.evaluator.evaluate(model, self.evaluator.selection_set, self.state)
        name, best = self.task.primary_metric, self.state.best
        value = float(scores[name])
        is_finite = math.isfinite(value)
        improved = is_finite and (best is None or (value < best if self.task.lower_is_better else value > best))
        if improved or best is None:  # until a value is finite, the latest weights stand in for the best
            self.state.best, self.state.best_step = value if is_finite else None, self.state.step
            self._save_model(model, "best", self._metadata(self.state.step, validation=scores))
        if not is_finite:
            self.callback.on_message(f"step {self.state.step}: {name} is {value}, so these weights do not count as the best")
        metrics = {name: number for name, number in scores.items() if isinstance(number, float)}
        self.callback.on_evaluation(self.state.step, metrics | self.evaluator.monitor(model, self.state.step), improved)

    def _result(self) -> dict[str, Any]:
        """Save the last weights, evaluate the best ones on test, and save the result."""
        best_step, validation = self.state.best_step, self.run.logged_validation(self.state.step)
        last_metadata = self._metadata(self.state.step, validation=validation)
        self._save_model(self.evaluator.eval_model(self.state), "last", last_metadata)
        self.group.barrier()  # for what the main process has written
        best_model = reload_model(self.run.folder / "best", self.task).to(self.device)
        split = next(name for name in ("test", "validation", "train") if len(self.data.splits[name]))
        validation = self._fit_validation(best_model) or self.run.logged_validation(best_step)
        scores = self.evaluator.evaluate(best_model, self.data.splits[split], self.state)
        self._save_model(best_model, "best", self._metadata(best_step, **{"validation": validation, split: scores}))
        result = {
            "run": str(self.run.folder),
            **self.run.origin(),
            "reported_on": split,
            split: self.task.result_metrics(scores),
            **self.task.baseline(self.data.train, self.data.splits[split]),
            **self.evaluator.details(scores),
            "selected_on": "validation" if len(self.data.validation) else "train",
            "best": {"step": best_step, self.task.primary_metric: math.nan if self.state.best is None else self.state.best},
            "steps": self.state.step,
            "seconds": self.state.seconds,
            "images_per_second": self.state.images / max(self.state.seconds, 1e-9),
            "skipped_steps": self.state.skipped_steps,
            "unreadable_images": self.unreadable_images + self._count_read_errors(),
        }
        predictions = {name: value.numpy() for name, value in scores.items() if isinstance(value, torch.Tensor)}
        if predictions:
            self.run.save_predictions(predictions)
        result = finite_or_text(result)
        self.run.save_result(result)
        return result

    def _fit_validation(self, model: nn.Module) -> dict[str, Any] | None:
        """Let the task choose what it chooses on validation, such as thresholds; return the metrics there with it."""
        if not self.task.fits_validation:
            return None
        scores = self.evaluator.evaluate(model, self.evaluator.selection_set, self.state)
        self.task = self.evaluator.task = self.task.with_validation(scores)
        return self.task.validation_metrics(scores)

    def _metadata(self, step: int, **scores: dict[str, Any]) -> dict[str, Any]:
        return run_metadata(self.recipe, self.data, self.image_size, self.task.state(), step, **scores)

    def train_loader(self) -> Loader:
        """Build the loader of this rank's part of the training batches."""
        recipe = self.recipe
        loader = build_train_loader(
            self.data.train, recipe.preprocess, recipe.batch_size, recipe.augment, recipe.seed,
            rank=self.group.rank, world_size=self.group.world_size, max_bad_fraction=recipe.max_bad_fraction,
            shuffle_window=recipe.shuffle_window, transform=self.transform,
        )  # fmt: skip
        return replace(loader, targets=self.task.targets)

    def create_state(self) -> TrainState:
        """Create the initial state of the recipe, on the device."""
        recipe = fit_to_memory(self.recipe, self.device, self.group)  # before the model takes its part
        with self.group.local_main_first():
            model = build_model(recipe, self.task, bool(list_checkpoints(self.run.checkpoints))).to(self.device)
        get_encoder(model).activation_checkpointing = recipe.activation_checkpointing
        state = create_state(model, recipe, self.group)
        if recipe.compile:
            model.compile()
        return state

    def _resume(self) -> None:
        """Restore the newest valid checkpoint, if there is one."""
        checkpoint = resume_from_checkpoint(self.run.checkpoints, self.state, self.provenance, self.group)
        self.run.truncate_log(self.state.step if checkpoint.is_resumed else -1)
        for message in checkpoint.messages:
            self.callback.on_message(message)

    def _save_checkpoint(self) -> None:
        self.checkpointer.save(self.state.step, self.state.tensors(), {**self.state.scalars(), **self.provenance})
        self.callback.on_checkpoint(self.state.step, self.run.checkpoints / f"step-{self.state.step}")

    def _save_model(self, model: nn.Module, name: str, metadata: dict[str, Any]) -> None:
        if self.group.is_main:
            save(model, self.run.folder / name, metadata=metadata)  # any module with an encoder

    def _is_due(self, interval: int) -> bool:
        return self.state.step % interval == 0 or self.state.step == self.recipe.steps

    @property
    def _early_stop(self) -> bool:
        """Whether the recipe's patience is exhausted: so many evaluations without improvement."""
        patience = self.recipe.early_stop_patience
        return patience is not None and self.state.step - self.state.best_step >= patience * self.recipe.eval_every

    def _out_of_time(self) -> bool:
        """Whether the time budget ends here, before the planned steps: the machine became slower than it was measured."""
        if self.deadline is None or self.state.step == self.recipe.steps:
            return False
        if not self.group.any_rank(time.monotonic() > self.deadline):
            return False
        self.callback.on_message(f"the time budget ends at step {self.state.step:,} of {self.recipe.steps:,}")
        return True

    def _seconds_left(self) -> float | None:
        """Estimate the seconds left; None if nothing was measured yet."""
        if self.state.step:
            return self.state.seconds / self.state.step * (self.recipe.steps - self.state.step)
        if self.timing is None:
            return None
        return self.timing.duration(self.recipe, self.recipe.steps, len(self.evaluator.selection_set), len(self.data.test))

    def _report_skipped(self, batch: Batch) -> None:
        """Say why a step was skipped; after too many in a row, stop."""
        causes = self.group.gather_str(find_nonfinite(self.state, self.task, batch, self.recipe))
        cause = next((each for each in causes if each.startswith(("an image", "the output"))), causes[0])
        self.callback.on_message(f"step {self.state.step} was skipped: {cause} not finite (NaN/Inf)")
        if self.skipped_in_a_row >= MAX_SKIPPED_STEPS:
            self._save_checkpoint()
            self.checkpointer.wait()
            raise TrainingDiverged(
                f"{self.skipped_in_a_row} consecutive steps were skipped, the last since {cause} not finite (NaN/Inf); the "
                f"last good weights are in {self.run.folder}; try a smaller optim.lr (now {self.recipe.optim.lr:g}) or "
                "optim.grad_clip=1"
            )

    def _count_read_errors(self) -> int:
        """Count the images that any rank could not read."""
        return len(self.group.all_gather_rows(torch.tensor(list(self.loader.read_errors), dtype=torch.int64)).unique())

    def _peer_lost(self, error: RuntimeError) -> Exception:
        saved = list_checkpoints(self.run.checkpoints)
        last_checkpoint = f"the last checkpoint is {saved[0].name}" if saved else "there is no checkpoint yet"
        return PeerLost(
            f"rank {self.group.rank} lost contact with the other ranks at step {self.state.step}: one has exited or does not "
            f"respond; {last_checkpoint}, and the same command resumes from there ({first_line(error)})"
        )
