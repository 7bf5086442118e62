"""``vitrail.train``, ``finetune`` and ``pretrain`` from Python: the run they return, and what of the user's own they take.

Images of 16 x 24 pixels in three classes, patches of 8.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from numpy import ndarray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.training.small_run import recipe
from tests.training.test_loop import RaisesAt, same
from vitrail.data.sources.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.recipes.task_config import Classification
from vitrail.training.prepare import RecipeOptions, settings_to_overrides
from vitrail.training.run import Run
from vitrail.training.trained_run import TrainedRun

SHORT = {"steps": 6, "schedule.warmup_steps": 0, "eval_every": 4, "checkpoint_every": 3, "augment.mixup": 0.0}
NAMES = ("bag", "boot", "shirt")
LABELS = np.arange(60) % 3
IMAGES = np.random.default_rng(0).integers(0, 256, (60, 16, 24, 3), np.uint8)
PAIRS = [(image, NAMES[label]) for image, label in zip(IMAGES, LABELS, strict=True)]


def train(out: Path, data: Any = PAIRS, settings: Mapping[str, Any] | None = None, **options: Any) -> TrainedRun:
    options = {"model": "mu/8", "image_size": (16, 24), "augment": "none", "batch_size": 8, "workers": 0, **options}
    return vitrail.train(data, settings={**SHORT, **(settings or {})}, out=out, **options)


def losses(run: TrainedRun) -> list[float]:
    return [row["loss"] for row in run.history if "loss" in row]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_a_run_from_python_is_the_run_of_its_recipe(trained: TrainedRun, tmp_path: Path) -> None:
    again = vitrail.fit(trained.run.recipe(), tmp_path / "again", vitrail.open_dataset(PAIRS))
    assert same(trained.folder, again.folder)
    assert trained.metrics == again.metrics


def test_what_a_run_returns_is_what_its_folder_holds(trained: TrainedRun) -> None:
    assert trained.result == json.loads((trained.folder / "result.json").read_text())
    assert trained.history == [json.loads(line) for line in (trained.folder / "log.jsonl").read_text().splitlines()]
    assert len(losses(trained)) == 6
    assert "<html" in trained.report.read_text()
    assert trained.model.class_names == NAMES
    with np.load(trained.folder / "predictions.npz") as file:
        logits, labels, indices = (torch.from_numpy(file[name]) for name in ("logits", "labels", "indices"))
    assert trained.metrics["top1"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert trained.metrics["loss"] == pytest.approx(F.cross_entropy(logits, labels).item())
    assert trained.data is not None
    images = [trained.data.test.read(index) for index in indices.tolist()]
    with torch.no_grad():
        assert_close(trained.model(vitrail.preprocess(trained.model, images)), logits)


def test_a_finished_run_is_returned_as_it_is(trained: TrainedRun) -> None:
    before = trained.report.stat().st_mtime_ns
    again = train(trained.folder)
    assert (again.result, again.history) == (trained.result, trained.history)
    assert again.report.stat().st_mtime_ns == before


class TorchPairs(torch.utils.data.Dataset[tuple[Tensor, str]]):
    """A dataset as torch's users write one: tensors of channels first."""

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        return torch.from_numpy(IMAGES[index]).permute(2, 0, 1), NAMES[LABELS[index]]


class ArrayPairs:
    """Any object with a length and pairs by index; its labels are numbers, which it names."""

    classes = NAMES

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[ndarray, int]:
        return IMAGES[index], int(LABELS[index])


@pytest.mark.parametrize("kind", ["torch", "object", "PIL", "folder"])
def test_the_same_images_in_another_container_are_the_same_run(kind: str, trained: TrainedRun, tmp_path: Path) -> None:
    data: Any = {"torch": TorchPairs(), "object": ArrayPairs(), "folder": tmp_path / "images"}.get(kind)
    if kind == "PIL":
        data = [(Image.fromarray(image), name) for image, name in PAIRS]
    if kind == "folder":
        for number, (image, name) in enumerate(PAIRS):
            (data / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(data / name / f"{number:02d}.png")
    run = train(tmp_path / "run", data)
    assert run.model.class_names == trained.model.class_names
    if kind == "folder":  # sorted by class, so that the batches are others
        assert {name: len(part) for name, part in run.data.splits.items()} == _split_sizes(trained)  # type: ignore[union-attr]
    else:
        assert same(run.folder, trained.folder)


def _split_sizes(run: TrainedRun) -> dict[str, int]:
    assert run.data is not None
    return {name: len(part) for name, part in run.data.splits.items()}


def test_a_dataset_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="got images and targets apart; try list\\(zip\\(images, targets\\)\\)"):
        train(tmp_path / "run", (IMAGES, LABELS))
    with pytest.raises(VitrailError, match="a dataset must be a path, a name or an object with __len__ and __getitem__"):
        train(tmp_path / "run", 7)
    assert not (tmp_path / "run").exists()


def jitter(image: Image.Image, generator: np.random.Generator) -> ndarray:
    """Add noise that the generator draws."""
    pixels = np.asarray(image).astype(np.int64)
    return (pixels + generator.integers(-40, 40, pixels.shape)).clip(0, 255).astype(np.uint8)


def test_a_transform_that_changes_nothing_is_no_augmentation(trained: TrainedRun, tmp_path: Path) -> None:
    plain = {"augment.crop": "none", "augment.hflip": 0.0}
    own, ours = train(tmp_path / "own", settings=plain, transform=lambda image: image), train(tmp_path / "ours", settings=plain)
    assert losses(own) == losses(ours) != losses(trained)


def test_a_transform_with_a_generator_follows_from_the_seed_and_resumes_exactly(trained: TrainedRun, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", transform=jitter)
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", transform=jitter, callbacks=[RaisesAt(5, OSError("broke"))])
    resumed = train(tmp_path / "run", transform=jitter, workers=2)
    assert same(whole.folder, resumed.folder)
    assert losses(whole) != losses(trained)


def test_a_loss_of_the_users_own_that_is_the_tasks_is_the_same_run(trained: TrainedRun, tmp_path: Path) -> None:
    def mean_of_losses(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, reduction="none").mean()

    assert same(train(tmp_path / "run", loss=mean_of_losses).folder, trained.folder)


def test_a_loss_gets_class_probabilities_if_images_are_mixed(tmp_path: Path) -> None:
    mixed = {"augment.mixup": 0.5}
    own, ours = train(tmp_path / "own", settings=mixed, loss=F.cross_entropy), train(tmp_path / "ours", settings=mixed)
    assert losses(own) == pytest.approx(losses(ours), rel=1e-5)


def test_an_interrupted_run_is_resumed_with_its_own_transform_and_loss_only(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", transform=jitter, loss=F.cross_entropy, callbacks=[RaisesAt(5, OSError("broke"))])
    with pytest.raises(VitrailError, match="was started with transform=jitter, got none; resume it from Python with the same"):
        train(tmp_path / "run", loss=F.cross_entropy)
    with pytest.raises(VitrailError, match="was started with loss=cross_entropy, got nll_loss; resume it from Python"):
        train(tmp_path / "run", transform=jitter, loss=F.nll_loss)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda outputs, targets: outputs.sum(dim=1), r"as a tensor, got a tensor of shape \(8,\); try reduction='mean'"),
        (lambda outputs, targets: 3.5, "loss must return the mean over the batch as a tensor, got 3.5; try"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused(loss: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=sentence):
        train(tmp_path / "run", loss=loss)


class Recorder(vitrail.Callback):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_start(self, recipe: Any, data: Any, state: Any, eta_seconds: float | None) -> None:
        self.events.append(("start", recipe.steps))

    def on_step(self, step: int, metrics: dict[str, float]) -> None:
        self.events.append(("step", {"step": step, **metrics}))

    def on_evaluation(self, step: int, metrics: dict[str, Any], is_best: bool) -> None:
        self.events.append(("evaluation", (step, metrics["top1"], is_best)))

    def on_checkpoint(self, step: int, path: Path) -> None:
        assert (path / "manifest.json").is_file()
        self.events.append(("checkpoint", step))

    def on_end(self, result: dict[str, Any]) -> None:
        self.events.append(("end", result))

    def of(self, kind: str) -> list[Any]:
        return [value for name, value in self.events if name == kind]


def test_callbacks_are_called_as_often_as_the_log_has_rows(tmp_path: Path) -> None:
    recorder = Recorder()
    run = train(tmp_path / "run", callbacks=[recorder])
    assert recorder.of("start") == [6]
    assert recorder.of("step") == [row for row in run.history if "loss" in row]
    evaluations = [(row["step"], row["validation"]["top1"]) for row in run.history if "validation" in row]
    assert [(step, top1) for step, top1, _ in recorder.of("evaluation")] == evaluations
    best = [step for step, _, is_best in recorder.of("evaluation") if is_best]
    assert best[-1] == run.result["best"]["step"]
    assert recorder.of("checkpoint") == [3, 6]
    assert recorder.of("end") == [run.result]
    assert recorder.events[-1][0] == "end"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"epoch": 3}, "no option is named 'epoch'; did you mean 'epochs'?"),
        ({"steps": 3}, "no option is named 'steps'; try settings={'steps': ...}"),
        ({"optim": 3}, "no option is named 'optim'; try settings={'optim': ...}"),
        ({"settings": {"optim.lrr": 3}}, "no field is named 'optim.lrr'; did you mean 'optim.lr'?"),
        ({"settings": {"optim.lr": "high"}}, "optim.lr must be a number, got 'high'"),
        ({"lr": 1e-3, "settings": {"optim.lr": 1e-3}}, "--lr and --set optim.lr set the same field; leave one of them out"),
        ({"epochs": 2, "minutes": 1}, "epochs and minutes both set the number of steps; leave one of them out"),
        ({"image_size": "large"}, "image_size must be a whole number or a pair such as 224x448 or none, got 'large'"),
        ({"transform": "flip"}, "transform must be a function, got 'flip'"),
        ({"loss": "mse"}, "loss must be a function, got 'mse'"),
        ({"callbacks": [print]}, "callbacks must be a list of vitrail.Callback objects, got [<built-in function print>]"),
        ({"callbacks": vitrail.Callback}, "callbacks must be a list of vitrail.Callback objects, got <class"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError) as caught:
        vitrail.train(PAIRS, out=tmp_path / "run", **options)
    assert str(caught.value).startswith(sentence)
    assert not (tmp_path / "run").exists()


def leaves(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Every field of settings that is not itself a settings class, by its dotted path."""
    values: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        values |= leaves(value, f"{prefix}{field.name}.") if is_dataclass(value) else {f"{prefix}{field.name}": value}
    return values


def test_settings_reach_every_field_with_the_types_of_python(tmp_path: Path) -> None:
    """A recipe whose every field is set to the value of another recipe is that recipe."""
    base = recipe()
    changes = {
        "model.stochastic_depth": 0.3, "model.registers": 2, "preprocess.crop_pct": 0.9, "augment.crop_scale": (0.3, 0.7),
        "optim.betas": (0.8, 0.95), "optim.grad_clip": None, "task.label_smoothing": 0.2, "compile": True, "ema_decay": None,
        "early_stop_patience": 4, "shuffle_window": 50, "schedule.kind": "rsqrt", "name": "other", "max_bad_fraction": 0.2,
    }  # fmt: skip
    assert changes.keys() <= leaves(base).keys()
    other, _ = RecipeOptions(settings_to_overrides(changes)).apply(base, 200)
    assert {path: leaves(other)[path] for path in changes} == changes
    copied, _ = RecipeOptions(settings_to_overrides(leaves(other))).apply(base, 200)
    assert copied == other


@pytest.mark.parametrize("task", [Classification(loss="sigmoid", label_smoothing=0.1), Classification(balanced_loss=True)])
def test_the_task_of_a_run_is_a_setting_like_others(task: Classification, trained: TrainedRun, tmp_path: Path) -> None:
    short = {**SHORT, "steps": 2, "batch_size": 8}
    by_task = vitrail.finetune(trained.folder, PAIRS, task=task, settings=short, out=tmp_path / "task")
    settings = {f"task.{field.name}": getattr(task, field.name) for field in fields(task) if field.name != "kind"}
    by_setting = vitrail.finetune(trained.folder, PAIRS, settings={**short, **settings}, out=tmp_path / "setting")
    assert by_task.run.recipe() == by_setting.run.recipe()
    assert by_task.run.recipe().task == task
    assert same(by_task.folder, by_setting.folder)


def test_fine_tuning_starts_from_the_weights_and_trains_what_it_is_told(trained: TrainedRun, tmp_path: Path) -> None:
    settings = {**SHORT, "batch_size": 8, "optim.weight_decay": 0.0}
    run = vitrail.finetune(trained.folder, PAIRS, trainable="head", settings=settings, out=tmp_path / "run")
    before, after = trained.model.state_dict(), run.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}
    assert run.run.recipe().init_from == str(trained.folder)


@dataclass(frozen=True)
class Brightness(vitrail.TaskConfig):
    kind: Literal["brightness-of-runs"] = "brightness-of-runs"
    labelled: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    def num_outputs(self, class_names: Any) -> int:
        return 1


@dataclass(frozen=True)
class BrightnessTask(vitrail.Task):
    config_class = Brightness
    primary_metric = "mae"
    lower_is_better = True

    def targets(self, dataset: Dataset, indices: ndarray) -> Tensor:
        return torch.tensor([dataset.target(int(index)) for index in indices], dtype=torch.float32)

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return F.mse_loss(model(batch.images)[:, 0], batch.targets), {}

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        return {"mae": (outputs[:, 0] - targets).abs().mean().item()}


def test_fine_tuning_takes_a_task_of_the_users_own(trained: TrainedRun, tmp_path: Path) -> None:
    data = [(image, float(image.mean() / 255)) for image in IMAGES]
    short = {**SHORT, "batch_size": 8}
    run = vitrail.finetune(trained.folder, data, task=Brightness(), settings=short, out=tmp_path / "run")
    assert isinstance(run.run.recipe().task, Brightness)
    assert run.model.config.classes == 1
    with np.load(run.folder / "predictions.npz") as file:
        assert run.metrics["mae"] == pytest.approx(np.abs(file["outputs"][:, 0] - file["targets"]).mean())


def test_pretraining_needs_no_labels_and_leaves_an_encoder(tmp_path: Path) -> None:
    decoder = {"task.masking.decoder_width": 32, "task.masking.decoder_depth": 1, "task.masking.decoder_heads": 2}
    options: dict[str, Any] = {"model": "mu/8", "image_size": (16, 24), "workers": 0, "batch_size": 8}
    images = [image for image, _ in PAIRS]
    run = vitrail.pretrain(images, settings={**SHORT, **decoder}, out=tmp_path / "run", **options)
    assert run.metrics.keys() == {"loss"}
    again = vitrail.fit(run.run.recipe(), tmp_path / "again", vitrail.open_dataset(images, labelled=False))
    assert losses(run) == losses(again)
    before = run.model.state_dict()
    tuned = vitrail.finetune(run.folder, PAIRS, trainable="head", settings={**SHORT, "batch_size": 8}, out=tmp_path / "tuned")
    after = tuned.model.state_dict()
    assert after.keys() - before.keys() == {"head.weight", "head.bias"}
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(VitrailError, match="pretrain has the loss of its method, mae; loss is an option of train and finetune"):
        vitrail.pretrain(PAIRS, loss=F.mse_loss, out=tmp_path / "refused", **options)
    assert Run(tmp_path / "refused").saved_recipe() is None
