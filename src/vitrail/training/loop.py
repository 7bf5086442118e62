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

from vitrail.data.cpu_cores import available_cores
from vitrail.data.dataset_check import DatasetReport
from vitrail.data.loader import Batch, Loader, build_train_loader
from vitrail.data.sources.dataset import Subset
from vitrail.errors import VitrailError
from vitrail.models.device import select_device
from vitrail.training.autotune import (
    FEW_STEPS,
    AutoTune,
    StepTiming,
    lr_range_test,
    measure_timing,
    recipe_for_minutes,
    with_lr,
)
from vitrail.training.build import build_model, build_task, get_encoder, reload_model
from vitrail.training.callbacks import Callback, NullCallback
from vitrail.training.checkpoint import Checkpointer, CheckpointRef, find_valid_checkpoint, list_checkpoints, load_tensors
from vitrail.training.dataset import data_warnings, majority_accuracy, open_training_data
from vitrail.training.evaluator import EVAL_BATCH_SIZE, Evaluator
from vitrail.training.hardware_check import check_hardware
from vitrail.training.memory import fit_micro_batch
from vitrail.training.parallel import choose_strategy
from vitrail.training.process_group import PeerLost, ProcessGroup, error_summary, is_comm_failure, process_group
from vitrail.training.recipe import Recipe
from vitrail.training.run import ReadOnlyRun, Run, lock_run
from vitrail.training.run_metadata import logged_validation, run_metadata
from vitrail.training.signals import TrainingStopped, handle_stop_signals
from vitrail.training.state import TrainState, create_state
from vitrail.training.step import find_nonfinite, train_step
from vitrail.weights.save import save

MAX_SKIPPED_STEPS = 10  # consecutive steps without a finite gradient


@dataclass(frozen=True)
class Hardware:
    """Device, CPU threads and data workers of a run. They change nothing of the result but the order of sums."""

    device: str = "auto"
    threads: int | None = None
    workers: int | None = None


def fit(
    recipe: Recipe,
    folder: str | Path,
    hardware: Hardware | None = None,
    callback: Callback | None = None,
    autotune: AutoTune | None = None,
) -> dict[str, Any]:
    """Train, select the best weights on validation, report on test. Return the contents of ``result.json``."""
    with process_group() as group:
        return _fit(recipe, Path(folder), hardware or Hardware(), callback or NullCallback(), autotune or AutoTune(), group)


def _fit(
    recipe: Recipe, folder: Path, hardware: Hardware, callback: Callback, autotune: AutoTune, group: ProcessGroup
) -> dict[str, Any]:
    start = time.monotonic()
    run = Run(folder) if group.is_main else ReadOnlyRun(folder)
    callback = callback if group.is_main else NullCallback()
    with lock_run(run) if group.is_main else nullcontext():
        group.barrier()  # for the lock
        result, saved_recipe = run.result(), run.saved_recipe()
        group.barrier()  # all have read the run before the main process writes to it
        if saved_recipe is not None:
            recipe = autotune.apply_saved(recipe, saved_recipe)
            run.record_recipe(recipe)
        if result is not None:
            callback.on_message(f"{run.folder} is finished: nothing to do")
            return result
        if hardware.threads:
            torch.set_num_threads(hardware.threads)
        check_hardware(recipe, select_device(hardware.device).type)
        with group.local_main_first():
            report = open_training_data(recipe, callback.progress)
        for warning in data_warnings(report):
            callback.on_message(warning)
        trainer = Trainer(recipe, run, hardware, callback, report, group)
        if saved_recipe is None:
            trainer.autotune(autotune, start)
            run.record_recipe(trainer.recipe)
        return trainer.fit()


class TrainingDiverged(VitrailError):
    """The recipe is valid, but its training diverged."""


class Trainer:
    """Trains one run, from its first step or its last checkpoint to its result."""

    state: TrainState

    def __init__(
        self, recipe: Recipe, run: Run, hardware: Hardware, callback: Callback, report: DatasetReport, group: ProcessGroup
    ) -> None:
        self.recipe, self.run, self.callback, self.group = recipe, run, callback, group
        self.data, self.unreadable_images = report.data, len(report.bad)
        self.workers, self.device = hardware.workers, select_device(hardware.device)
        self.checkpointer = Checkpointer(run.checkpoints, recipe.keep_checkpoints, group)
        self.task = build_task(recipe, self.data)
        self.evaluator = Evaluator(recipe, self.data, self.task, group, self.device, _num_workers(hardware.workers))
        self.loader = self._train_loader()
        self.timing: StepTiming | None = None
        self.deadline: float | None = None  # of training, by ``time.monotonic``

    def autotune(self, options: AutoTune, start: float) -> None:
        """Measure what was left open, on weights that are discarded, and fix it in the recipe. ``start``: when it began."""
        evaluator, workers = self.evaluator, self.evaluator.workers
        if options.find_lr:
            lr_test = lr_range_test(
                self.recipe, self._create_state, self.task, self._train_loader(), workers, self.callback.progress
            )
            self.callback.on_message(f"the range test finds lr {lr_test.lr:g}; the recipe has {self.recipe.optim.lr:g}")
            self.run.save_lr_test(vars(lr_test))
            self.recipe = with_lr(self.recipe, lr_test.lr)
        if options.minutes is None and not self.group.any_rank(self.callback.wants_eta):
            return
        self.state = self._create_state()
        eval_loader = evaluator.loader(
            Subset(evaluator.selection_set, np.arange(min(len(evaluator.selection_set), EVAL_BATCH_SIZE))), self.state
        )
        measured = measure_timing(
            self.recipe, self._create_state, self.task, self._train_loader(), eval_loader, workers, evaluator.eval_model
        )
        slowest = self.group.gather(measured.step, measured.image, evaluator.overhead_seconds(evaluator.eval_model(self.state)))
        self.timing = StepTiming(*map(max, zip(*slowest, strict=True)))
        if options.minutes is not None:
            self._fit_to_minutes(options.minutes, self.timing, start)

    def _fit_to_minutes(self, minutes: float, timing: StepTiming, start: float) -> None:
        """Set the steps that fit into the budget, and the deadline that leaves time for the final evaluation."""
        num_val, num_test = len(self.evaluator.selection_set), len(self.data.test)
        elapsed = self.group.all_max(time.monotonic() - start)
        shortened = recipe_for_minutes(minutes, self.recipe, timing, num_val, num_test, elapsed)
        self.callback.on_message(
            f"{shortened.steps:,} steps fit into {minutes:g} minutes; the recipe has {self.recipe.steps:,}"
        )
        if shortened.steps < min(FEW_STEPS, self.recipe.steps):
            self.callback.on_message("          expect little of so few steps; a smaller --model or --image-size trains faster")
        self.recipe = shortened
        self.deadline = start + 60 * minutes - timing.eval_duration(1, num_val, num_test)

    def fit(self) -> dict[str, Any]:
        self.state = self._create_state()
        self._resume()
        self.callback.on_start(self.recipe, self.data, self.model.config, self.state, self._seconds_left())
        try:
            self._train()
            return self._result()
        except RuntimeError as error:
            if self.group.world_size == 1 or not is_comm_failure(error):
                raise
            raise self._peer_lost(error) from None

    def _peer_lost(self, error: RuntimeError) -> Exception:
        saved = list_checkpoints(self.run.checkpoints)
        last_checkpoint = f"the last checkpoint is {saved[0].name}" if saved else "there is no checkpoint yet"
        return PeerLost(
            f"rank {self.group.rank} lost contact with the other ranks at step {self.state.step}: one has exited or does not "
            f"respond; {last_checkpoint}, and the same command resumes from there ({error_summary(error)})"
        )

    def _train(self) -> None:
        start, seconds_before, skipped_in_a_row = time.perf_counter(), self.state.seconds, 0
        self.state.model.train()
        last_step = self.state.step if self._early_stop else self.recipe.steps  # it had stopped early when the process ended
        # around the steps alone: there is nothing to save before them, and all is saved after them
        with handle_stop_signals(ignore_repeats=self.group.world_size > 1) as stop:
            for batch in self.loader.batches(self.state.step, last_step, self.workers):
                micro_batch_size = self.state.micro_batch_size
                metrics = train_step(self.state, self.task, batch, self.recipe)
                self.state.seconds = seconds_before + time.perf_counter() - start
                skipped_in_a_row = skipped_in_a_row + 1 if self.state.skipped_steps and not _all_finite(metrics) else 0
                if self.state.micro_batch_size != micro_batch_size:
                    self.callback.on_message(
                        f"the batch did not fit into memory: now micro-batches of {self.state.micro_batch_size} images"
                    )
                self._log_step(metrics, skipped_in_a_row, batch)
                out_of_time = self._out_of_time()
                if self._is_due(self.recipe.eval_every) or out_of_time:
                    self._evaluate()
                stop_signal = int(self.group.all_max(stop.signal or 0))  # whichever rank received it
                if self._is_due(self.recipe.checkpoint_every) or stop_signal or self._early_stop or out_of_time:
                    self._save_checkpoint()
                self.checkpointer.raise_if_failed()
                if stop_signal:
                    self._flush_checkpoint()
                    raise TrainingStopped(128 + stop_signal, f"stopped at step {self.state.step}")
                if self._early_stop or out_of_time:
                    break
            self._flush_checkpoint()

    def _out_of_time(self) -> bool:
        """Whether the time budget ends here, before the planned steps: the machine became slower than it was measured."""
        if self.deadline is None or self.state.step == self.recipe.steps:
            return False
        if not self.group.any_rank(time.monotonic() > self.deadline):
            return False
        self.callback.on_message(f"the time budget ends at step {self.state.step:,} of {self.recipe.steps:,}")
        return True

    def _flush_checkpoint(self) -> None:
        """Wait until the last checkpoint is complete: the launcher ends all ranks when the first one exits."""
        self.checkpointer.wait()
        self.group.barrier()

    @property
    def _early_stop(self) -> bool:
        """Whether the recipe's patience is exhausted: so many evaluations without improvement."""
        patience = self.recipe.early_stop_patience
        return patience is not None and self.state.step - self.state.best_step >= patience * self.recipe.eval_every

    def _train_loader(self) -> Loader:
        recipe = self.recipe
        return build_train_loader(
            self.data.train, recipe.preprocess, recipe.batch_size, recipe.augment, recipe.seed,
            rank=self.group.rank, world_size=self.group.world_size, max_bad_fraction=recipe.max_bad_fraction,
            shuffle_window=recipe.shuffle_window,
        )  # fmt: skip

    def _create_state(self) -> TrainState:
        """Create the initial state of the recipe, on the device."""
        with self.group.local_main_first():
            self.model = build_model(self.recipe, self.data, bool(list_checkpoints(self.run.checkpoints))).to(self.device)
        get_encoder(self.model).activation_checkpointing = self.recipe.activation_checkpointing  # type: ignore[assignment]
        parallel = choose_strategy(self.recipe.parallel, self.model.config, self.device, self.group)
        state = create_state(self.model, replace(self.recipe, parallel=parallel), self.group)
        per_rank_batch = self.recipe.batch_size // self.group.world_size
        if self.recipe.micro_batch_size is None and self.device.type == "cpu":
            shards = self.group.world_size if parallel == "fsdp" else 1
            largest = int(
                self.group.all_min(
                    fit_micro_batch(self.model.config, per_rank_batch, self.group.free_memory(self.device), shards)
                )
            )
            state.micro_batch_size = largest if largest < per_rank_batch else None
        if self.recipe.compile:
            self.model.compile()
        return state

    def _seconds_left(self) -> float | None:
        """Estimate the seconds left; None if nothing was measured yet."""
        if self.state.step:
            return self.state.seconds / self.state.step * (self.recipe.steps - self.state.step)
        if self.timing is None:
            return None
        return self.timing.duration(self.recipe, self.recipe.steps, len(self.evaluator.selection_set), len(self.data.test))

    def _resume(self) -> None:
        checkpoint = self._latest_checkpoint()
        if checkpoint is None:
            self.run.truncate_log(-1)
            return
        scalars = checkpoint.scalars
        for warning in checkpoint.damaged:
            self.callback.on_message(warning)
        for name, current in self._provenance().items():
            if scalars.get(name) != current:
                if name == "data":
                    raise VitrailError(
                        f"{self.run.folder} was started on other images or labels; use another folder for this dataset"
                    )
                self.callback.on_message(
                    f"{name} was {scalars.get(name)} when the run was started and is {current}: resuming, "
                    "perhaps not bit for bit"
                )
        load_tensors(checkpoint.path, self.state.load_targets, self.group)
        self.state.restore(scalars)
        self.run.truncate_log(self.state.step)
        self.callback.on_message(f"resumed from step {self.state.step}")

    def _latest_checkpoint(self) -> CheckpointRef | None:
        """Find the newest valid checkpoint. The main process verifies the hashes, the others take its result."""
        checkpoint = find_valid_checkpoint(self.run.checkpoints) if self.group.is_main else None
        self.group.barrier()  # reading them all may take long
        path = self.group.broadcast_str(lambda: "" if checkpoint is None else str(checkpoint.path))
        return checkpoint or (CheckpointRef(Path(path)) if path else None)

    def _provenance(self) -> dict[str, str]:
        return {"data": self.data.fingerprint, "vitrail": version("vitrail"), "torch": torch.__version__}

    def _is_due(self, interval: int) -> bool:
        return self.state.step % interval == 0 or self.state.step == self.recipe.steps

    def _log_step(self, metrics: dict[str, float], skipped_in_a_row: int, batch: Batch) -> None:
        log_row = {"step": self.state.step, **{name: _to_json(value) for name, value in metrics.items()}}
        self.run.log(log_row)
        if metrics:
            self.callback.on_step(self.state.step, metrics)
        else:
            self.callback.on_message(f"no image of step {self.state.step} could be read")
        if skipped_in_a_row:
            cause = f"{self._find_nonfinite(batch)} not finite (NaN/Inf)"
            self.callback.on_message(f"step {self.state.step} was skipped: {cause}")
            if skipped_in_a_row >= MAX_SKIPPED_STEPS:
                self._save_checkpoint()
                self.checkpointer.wait()
                raise TrainingDiverged(
                    f"{skipped_in_a_row} consecutive steps were skipped, the last since {cause}; the last good weights are in "
                    f"{self.run.folder}; try a smaller optim.lr (now {self.recipe.optim.lr:g}) or optim.grad_clip=1"
                )

    def _find_nonfinite(self, batch: Batch) -> str:
        cause = find_nonfinite(self.state, self.task, batch, self.recipe)
        if self.group.world_size == 1:
            return cause
        causes = self.group.gather_str(cause)
        return next((each for each in causes if each.startswith(("an image", "the output"))), causes[0])

    def _evaluate(self) -> None:
        model = self.evaluator.eval_model(self.state)
        scores = self.evaluator.evaluate(model, self.evaluator.selection_set, self.state)
        value = scores[self.task.primary_metric]
        improved = self.state.best is None or (
            value < self.state.best if self.task.lower_is_better else value > self.state.best
        )
        if improved:
            self.state.best, self.state.best_step = value, self.state.step
            metadata = run_metadata(self.recipe, self.data, self.state.step, validation=scores)
            self._save_model(model, "best", metadata)
        metrics = {name: number for name, number in scores.items() if isinstance(number, float)}
        metrics |= self.evaluator.ssl_metrics(model, self.run, self.state.step)
        attention_stats = self.evaluator.attention_stats(model)
        self.run.log(
            {
                "step": self.state.step,
                "validation": metrics,
                **({} if attention_stats is None else {"attention_stats": attention_stats}),
            }
        )
        self.callback.on_evaluate(self.state.step, metrics, improved)

    def _save_checkpoint(self) -> None:
        scalars = {**self.state.scalars(), **self._provenance()}
        self.checkpointer.save(self.state.step, self.state.tensors(), scalars)

    def _count_read_errors(self) -> int:
        """Count the images that any rank could not read."""
        return len(self.group.all_gather_rows(torch.tensor(list(self.loader.read_errors), dtype=torch.int64)).unique())

    def _save_model(self, model: nn.Module, name: str, metadata: dict[str, Any]) -> None:
        if self.group.is_main:
            save(model, self.run.folder / name, metadata=metadata)  # type: ignore[arg-type]

    def _result(self) -> dict[str, Any]:
        step, log_rows = self.state.step, self.run.log_rows()
        metadata = run_metadata(self.recipe, self.data, step, validation=logged_validation(log_rows, step))
        self._save_model(self.evaluator.eval_model(self.state), "last", metadata)
        self.group.barrier()  # for what the main process has written
        best_model = reload_model(self.run.folder / "best", self.recipe).to(self.device)
        split = next(name for name in ("test", "validation", "train") if len(self.data.splits[name]))
        scores = self.evaluator.evaluate(best_model, self.data.splits[split], self.state)
        step = self.state.best_step
        metadata = run_metadata(
            self.recipe, self.data, step, **{"validation": logged_validation(log_rows, step), split: scores}
        )
        self._save_model(best_model, "best", metadata)
        result = {
            "run": str(self.run.folder),
            "reported_on": split,
            split: {name: value for name, value in scores.items() if isinstance(value, float)},
            **({} if self.recipe.masking else {"majority_class": majority_accuracy(self.data.train, self.data.splits[split])}),
            "selected_on": "validation" if len(self.data.validation) else "train",
            "best": {"step": self.state.best_step, self.task.primary_metric: self.state.best},
            "steps": self.state.step,
            "seconds": self.state.seconds,
            "images_per_second": self.state.images / max(self.state.seconds, 1e-9),
            "skipped_steps": self.state.skipped_steps,
            "unreadable_images": self.unreadable_images + self._count_read_errors(),
        }
        predictions = {name: value.numpy() for name, value in scores.items() if isinstance(value, torch.Tensor)}
        if predictions:
            self.run.save_predictions(predictions)
        self.run.save_result(result)
        return result


def _num_workers(requested: int | None) -> int:
    return min(available_cores(), 8) if requested is None else requested


def _all_finite(metrics: dict[str, float]) -> bool:
    return all(value - value == 0 for value in metrics.values())


def _to_json(value: float) -> float | str:
    return value if value - value == 0 else str(value)
