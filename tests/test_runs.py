"""``vitrail.train``, ``finetune`` and ``pretrain`` from Python: the run they return, and what of the user's own they take.

Images of 16 x 24 pixels in three classes, patches of 8.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

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

    run = train(tmp_path / "run", loss=mean_of_losses)
    assert losses(run) == losses(trained)
    assert all(torch.equal(weight, run.model.state_dict()[name]) for name, weight in trained.model.state_dict().items())


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
        (
            lambda outputs, targets: outputs.detach().mean(),
            "loss must return a tensor with a gradient, got one without; compute",
        ),
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
        ({"lr": 1e-3, "settings": {"optim.lr": 1e-3}}, "lr and settings['optim.lr'] set the same field; leave one of them out"),
        ({"epochs": 2, "minutes": 1}, "epochs and minutes both set the number of steps; leave one of them out"),
        ({"image_size": "large"}, "image_size must be a whole number or a pair such as 224x448 or none, got 'large'"),
        ({"transform": "flip"}, "transform must be a function, got 'flip'"),
        ({"loss": "mse"}, "loss must be a function, got 'mse'"),
        ({"callbacks": [print]}, "callbacks must be a list of vitrail.Callback objects, got [<built-in function print>]"),
        ({"callbacks": vitrail.Callback}, "callbacks must be a list of vitrail.Callback objects, got <class"),
        ({"model": vitrail.variant("mu/8")}, "model must be a name, got a ViTConfig; change the variant by settings, such as"),
        ({"model": torch.nn.Linear(2, 3)}, "model must be a name, got a Linear; change the variant by settings, such as"),
        ({"recipe": recipe()}, "recipe must be a name, got a Recipe; vitrail.fit trains a complete recipe"),
        ({"task": 3}, "task must be a name such as 'segment', or the settings of a task, got 3; leave it out for the one"),
        (
            {"task": "classfy"},
            "task must be classify, regress, segment, detect, multi-label, got 'classfy'; did you mean 'classify'",
        ),
        ({"epochs": "3"}, "epochs must be a number, got '3'"),
        ({"epochs": 0}, "epochs must be above 0, got 0; try epochs=10"),
        ({"minutes": "1"}, "minutes must be a number, got '1'"),
        ({"minutes": 0}, "minutes must be above 0 and finite, got 0; try minutes=5"),
        ({"compile": "yes"}, "compile must be true or false, got 'yes'"),
        ({"settings": 3}, "settings must be a dict, got an int; try settings={'optim.grad_clip': 1.0}"),
        ({"settings": "steps=3"}, "settings must be a dict, got a str; try settings="),
        ({"settings": ["steps"]}, "an override reads FIELD=VALUE, got 'steps'"),
        ({"threads": -3}, "threads must be a whole number from 1, got -3; try threads=2"),
        ({"threads": 0}, "threads must be a whole number from 1, got 0; try threads=2"),
        ({"threads": "2"}, "threads must be a whole number from 1, got '2'"),
        ({"workers": -1}, "workers must be a whole number from 0, got -1"),
        ({"out": 3}, "out must be the path of a run folder, got 3; try out='runs/mine'"),
        ({"out": ""}, "out must be the path of a run folder, got ''; try out='runs/mine'"),
        ({"device": "gpu"}, "device must be auto, cpu, cuda, cuda:N or mps, got 'gpu'; try auto"),
        ({"device": 3.5}, "device must be auto, cpu, cuda, cuda:N or mps, got 3.5; try auto"),
        ({"recipe": "mae"}, "mae trains without labels; try vitrail pretrain with method=mae"),
        ({"recipe": "demo", "model": "B/16"}, "demo has its own model and takes no other, got model=B/16; try recipe=plain"),
        ({"recipe": "small", "model": "R50x1"}, "the small recipe trains a ViT, got model=R50x1; try recipe=resnet"),
        ({"loss": lambda outputs: outputs.sum()}, "loss must take two arguments, outputs and targets, got loss(outputs)"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError) as caught:
        vitrail.train(PAIRS, **{"out": tmp_path / "run", **options})
    assert str(caught.value).startswith(sentence)
    assert "--" not in str(caught.value)  # the command's spelling
    assert not (tmp_path / "run").exists()


WRONG_CALLS: dict[str, Any] = {
    "recipe must be a complete Recipe, got a str; try vitrail.train(data, recipe='small')": lambda run: vitrail.fit("small"),  # type: ignore[arg-type]
    "folder must be the path of a run folder, got 3; try folder='runs/mine'": lambda run: vitrail.fit(
        run.run.recipe(), cast(Any, 3)
    ),
    "weights must be a path or hf:owner/name, got a ViT; vitrail.save(": lambda run: vitrail.finetune(run.model, PAIRS),
    "the model has 1 block, got trainable=last:99; try trainable=last:1": (
        lambda run: vitrail.finetune(run.folder, PAIRS, trainable="last:99")
    ),
    "trainable must be all, head or last:N, got 3; try": (
        lambda run: vitrail.finetune(run.folder, PAIRS, trainable=cast(Any, 3))
    ),
    "small trains from scratch, without weights; try recipe=finetune": (
        lambda run: vitrail.finetune(run.folder, PAIRS, recipe="small")
    ),
    "method must be masked-patch, mae, simmim, got 'mea'; did you mean": lambda run: vitrail.pretrain(PAIRS, method="mea"),
    "task.masking.target": lambda run: vitrail.pretrain(PAIRS, method="masked-patch", target="colour"),
    "resume must be a run folder with a recipe.json, got nowhere": lambda run: vitrail.train(resume="nowhere"),
    "resume must be the path of a run folder, got 3": lambda run: vitrail.train(resume=cast(Any, 3)),
    "resume has a recipe already; leave out model, and": lambda run: vitrail.train(resume=run.folder, model="S/16"),
    "recipe_from must be a run or its recipe.json, got nowhere": lambda run: vitrail.train(recipe_from="nowhere"),
    "recipe_from has a recipe already; leave out recipe and image_size, and change fields by settings": (
        lambda run: vitrail.train(recipe_from=run.folder, recipe="plain", image_size=32)
    ),
    "images must be one image, a list of them or a dataset, got a dict": lambda run: vitrail.predict(run.folder, {"a": 1}),
}


@pytest.mark.parametrize("sentence", WRONG_CALLS)
def test_a_wrong_argument_is_one_sentence(sentence: str, trained: TrainedRun) -> None:
    with pytest.raises(VitrailError) as caught:
        WRONG_CALLS[sentence](trained)
    assert str(caught.value).startswith(sentence)
    assert "--" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "found", "remedy"),
    [
        (None, "no labels", "give pairs of image and label, or pretrain, which needs none"),
        ([-1] * 60, "no labels", "give pairs of image and label"),
        ([{"boxes": [1, 2]}] * 60, "a dict with the keys boxes as the first target", "such as target.argmax()"),
    ],
)
def test_targets_that_are_no_classes_are_refused_for_what_they_are(
    targets: list[Any] | None, found: str, remedy: str, tmp_path: Path
) -> None:
    data = list(IMAGES) if targets is None else list(zip(IMAGES, targets, strict=True))
    for of_a_recipe in (False, True):
        with pytest.raises(VitrailError, match=r"the targets of classification must be class labels, and .* has ") as caught:
            vitrail.fit(recipe(), tmp_path / "run", data) if of_a_recipe else train(tmp_path / "run", data)
        assert found in str(caught.value)
        assert remedy in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_recipe_for_classes_refuses_numbers_and_several_labels_which_are_tasks_of_their_own(tmp_path: Path) -> None:
    numbers = list(zip(IMAGES, np.linspace(0.25, 1, 60).tolist(), strict=True))
    with pytest.raises(VitrailError, match=r"the targets of classification must be class labels, and .* has numbers such as"):
        vitrail.fit(recipe(), tmp_path / "run", numbers)
    several = list(zip(IMAGES, np.eye(3, dtype=np.float32)[LABELS], strict=True))
    with pytest.raises(VitrailError, match="has several labels per image, which classification cannot learn"):
        vitrail.fit(recipe(), tmp_path / "run", several)
    assert not (tmp_path / "run").exists()


def test_labels_of_minus_one_are_said_to_be_left_out(caplog: pytest.LogCaptureFixture) -> None:
    data = vitrail.open_dataset({"train": [(image, int(label) - 1) for image, label in zip(IMAGES, LABELS, strict=True)]})
    assert (data.train.labels == -1).any()
    (message,) = caplog.messages  # once
    assert message.startswith(
        "20 of 60 targets are -1, which stands for no label: a classifier is not trained on these images;"
    )


def test_settings_can_be_a_list_as_after_the_commands_set(tmp_path: Path) -> None:
    data = vitrail.open_dataset(PAIRS)
    options: dict[str, Any] = {"model": "mu/8", "image_size": (16, 24), "workers": 0, "out": tmp_path / "run"}
    run = vitrail.train(data, settings=[f"{name}={value}" for name, value in SHORT.items()], batch_size=np.int64(8), **options)
    assert {path: value for path, value in leaves(run.run.recipe()).items() if path in SHORT} == SHORT


def test_fit_opens_a_dataset_as_train_does(trained: TrainedRun, tmp_path: Path) -> None:
    assert same(vitrail.fit(trained.run.recipe(), tmp_path / "pairs", PAIRS).folder, trained.folder)
    splits = vitrail.open_dataset(PAIRS).splits
    mapping = vitrail.fit(trained.run.recipe(), tmp_path / "mapping", {name: list(part) for name, part in splits.items()})
    assert _split_sizes(mapping) == _split_sizes(trained)


def test_a_run_is_resumed_and_continued_in_a_new_folder(trained: TrainedRun, tmp_path: Path) -> None:
    """A run that was interrupted, or made longer, is the uninterrupted one; its dataset, an object, is given again."""
    with pytest.raises(OSError, match="broke"):
        train(tmp_path / "run", callbacks=[RaisesAt(5, OSError("broke"))])
    assert same(vitrail.train(PAIRS, resume=tmp_path / "run", workers=0).folder, trained.folder)
    constant = {"schedule.kind": "constant"}
    longer = train(tmp_path / "longer", settings={**constant, "steps": 8})
    shorter = train(tmp_path / "shorter", settings=constant)
    continued = vitrail.train(PAIRS, resume=shorter.folder, settings={"steps": 8}, out=tmp_path / "continued", workers=0)
    assert continued.folder == tmp_path / "continued"
    assert continued.result["continued_from"]["changes"] == ["steps was 6, is 8"]
    assert losses(continued) == losses(longer)
    own: dict[str, Any] = {"transform": jitter, "loss": F.cross_entropy, "workers": 0}
    train(tmp_path / "own", settings=constant, **own)
    longer = vitrail.train(PAIRS, resume=tmp_path / "own", settings={"steps": 8}, out=tmp_path / "own longer", **own)
    assert len(losses(longer)) == 8
    with pytest.raises(VitrailError, match="was started with transform=jitter, got none"):
        vitrail.train(PAIRS, resume=tmp_path / "own", settings={"steps": 9}, out=tmp_path / "refused")
    with pytest.raises(VitrailError, match=r"is resumed where it is, got out=.*; leave it out, or change a recipe field"):
        vitrail.train(PAIRS, resume=shorter.folder, out=tmp_path / "other")


def test_the_recipe_of_another_run_is_trained_again_with_changes(trained: TrainedRun, tmp_path: Path) -> None:
    again = vitrail.train(PAIRS, recipe_from=trained.folder, out=tmp_path / "again", workers=0)
    assert same(again.folder, trained.folder)
    other = vitrail.train(PAIRS[:30], recipe_from=trained.folder / "recipe.json", seed=3, out=tmp_path / "other", workers=0)
    assert (other.run.recipe().seed, other.run.recipe().model) == (3, trained.run.recipe().model)
    assert other.data is not None
    assert other.run.recipe().data == other.data.name != trained.run.recipe().data


def test_a_dataset_named_by_settings_is_the_only_one_that_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def open_once(source: Any, **options: Any) -> Any:
        opened.append(source)
        return vitrail.open_dataset(source, **options)

    monkeypatch.setattr("vitrail.training.prepare.open_dataset", open_once)
    monkeypatch.setattr("vitrail.training.dataset.open_dataset", open_once)
    run = train(tmp_path / "run", "nowhere", settings={"data": "panes:train_size=40,size=16"})
    named = [source for source in opened if isinstance(source, str)]  # the others are open already
    assert named == [run.run.recipe().data] == ["panes:train_size=40,size=16"]


class Flip(torch.nn.Module):
    """A transform as torchvision writes them, which calls as ``(*args, **kwargs)``."""

    def forward(self, image: Image.Image) -> Image.Image:
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def test_a_torch_module_is_a_transform_of_one_argument(tmp_path: Path) -> None:
    by_module = train(tmp_path / "module", transform=Flip())
    assert losses(by_module) == losses(train(tmp_path / "function", transform=lambda image: Flip()(image)))


def test_a_grey_image_is_a_transforms_input_and_output(tmp_path: Path) -> None:
    data = [(image[..., :1], name) for image, name in PAIRS]
    assert losses(train(tmp_path / "run", data, transform=lambda image: image.convert("L")))


@pytest.mark.parametrize(
    ("transform", "found"),
    [
        (lambda image: None, "got None; try the PIL image"),
        (lambda image: np.asarray(image) / 255, "got an array of float64, 16 x 24 x 3"),
        (lambda image: "image.png", "got a str"),
        (lambda image: torch.zeros(3, 8, 8), "a normalised tensor of shape (3, 16, 24), got a tensor of float32, 3 x 8 x 8"),
        (lambda image: torch.zeros(3, 16, 24, dtype=torch.int32), "got a tensor of int32, 3 x 16 x 24"),
    ],
)
def test_a_transform_that_returns_no_image_is_refused(transform: Any, found: str, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"^transform must return ") as caught:
        train(tmp_path / "run", transform=transform)
    assert found in str(caught.value)


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
    head = vitrail.finetune(
        trained.folder, data, task=Brightness(), trainable="head", settings={**short, "steps": 2}, out=tmp_path / "head"
    )
    before, after = trained.model.state_dict(), head.model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"head.weight", "head.bias"}
    with np.load(run.folder / "predictions.npz") as file:
        assert run.metrics["mae"] == pytest.approx(np.abs(file["outputs"][:, 0] - file["targets"]).mean())


@dataclass(frozen=True)
class Forgetful(vitrail.TaskConfig):
    """Settings that forget to say that the targets are no classes."""

    kind: Literal["forgetful"] = "forgetful"


def test_a_task_that_forgets_to_be_unlabelled_is_told_so(tmp_path: Path) -> None:
    data = [(image, float(image.mean())) for image in IMAGES]
    with pytest.raises(
        VitrailError, match=r"the targets of forgetful must be class labels, .*; set labelled = False in Forgetful"
    ):
        train(tmp_path / "run", data, task=Forgetful())


def test_the_target_of_masked_patch_is_an_option(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": "mu/8", "image_size": (16, 24), "workers": 0, "batch_size": 8}
    settings = {**SHORT, "steps": 1}
    run = vitrail.pretrain(PAIRS, method="masked-patch", target="pixels", settings=settings, out=tmp_path / "run", **options)
    assert leaves(run.run.recipe())["task.masking.target"] == "pixels"


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
