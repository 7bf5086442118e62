"""Several labels per image, from a table to predictions: detected, learned, resumed, evaluated, reported."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn import metrics
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.training.test_loop import RaisesAt, same
from vitrail.cli.main import run as run_command
from vitrail.data.loader import Batch
from vitrail.data.preprocess import vit_preprocess
from vitrail.data.sources.columns import choose_columns
from vitrail.data.sources.dataset import ArrayDataset, DatasetSplits, as_label_sets
from vitrail.errors import VitrailError
from vitrail.models.config import ViTConfig
from vitrail.recipes.task_config import MultiLabel
from vitrail.tasks.label_metrics import mean_average_precision
from vitrail.tasks.multi_label import MultiLabelTask, asymmetric_loss, focal_loss
from vitrail.training.prepare import RecipeOptions, prepare_finetuning
from vitrail.training.trained_run import TrainedRun
from vitrail.weights.model_folder import read_metadata

NAMES = ("left", "middle", "right")  # of the bars that an image has
SHORT = {"steps": 160, "schedule.warmup_steps": 0, "eval_every": 40, "checkpoint_every": 20, "optim.lr": 1e-2}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write 90 images with up to three bright bars each, and a table of which."""
    folder, rng, rows = tmp_path_factory.mktemp("bars"), np.random.default_rng(0), ["file,bars,split"]
    for number in range(90):
        has_bar = rng.random(3) < (0.3, 0.5, 0.6)
        pixels = rng.integers(0, 60, (16, 24, 3), dtype=np.uint8)
        for bar in np.flatnonzero(has_bar):
            pixels[:, 8 * bar : 8 * bar + 8] += 150
        Image.fromarray(pixels).save(folder / f"{number}.png")
        labels = ";".join(np.array(NAMES)[has_bar])
        rows.append(f"{number}.png,{labels},{'train' if number < 50 else 'validation' if number < 70 else 'test'}")
    (folder / "bars.csv").write_text("\n".join(rows))
    return folder / "bars.csv"


def train(table: Path, out: Path, **options: Any) -> TrainedRun:
    common: dict[str, Any] = {"model": "mu/8", "image_size": (16, 24), "augment": "none", "batch_size": 10, "workers": 0}
    return vitrail.train(table, labels_column="bars", settings=SHORT, out=out, **common, **options)


@pytest.fixture(scope="module")
def trained(table: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(table, tmp_path_factory.mktemp("runs") / "run")


def test_it_is_detected_learned_and_recorded(trained: TrainedRun, table: Path) -> None:
    recipe = trained.run.recipe()
    assert recipe.task == MultiLabel()
    assert (recipe.columns.labels, recipe.columns.separator, recipe.columns.several) == ("bars", ";", True)
    assert trained.model.class_names == NAMES
    assert trained.metrics["map"] > 0.85  # a random ranking has about 0.5
    classes = json.loads((trained.folder / "result.json").read_text())["classes"]
    assert [row["name"] for row in classes] == list(NAMES)
    assert [row["threshold"] for row in classes] == read_metadata(trained.folder / "best")["task_state"]["thresholds"]
    assert {"ap", "threshold", "precision", "recall", "support"} <= set(classes[0])
    data = vitrail.open_dataset(table, labels_column="bars")
    assert data.test.label_sets is not None
    assert [row["support"] for row in classes] == data.test.label_sets.counts().tolist()


def test_the_log_has_no_metric_of_thresholds_that_are_not_chosen_yet(trained: TrainedRun) -> None:
    rows = [row["validation"] for row in trained.run.log_rows() if "validation" in row]
    assert rows
    assert all(
        "f1_macro_at_0.5" in row and not {"f1_macro", "f1_micro", "hamming", "subset_accuracy"} & set(row) for row in rows
    )
    assert {"f1_macro", "f1_micro", "hamming", "subset_accuracy"} <= set(trained.metrics)


def test_a_head_is_not_kept_for_another_task(trained: TrainedRun, table: Path) -> None:
    single = table.with_name("single.csv")
    single.write_text("file,label\n" + "\n".join(f"{number}.png,{NAMES[number % 3]}" for number in range(60)))
    for source, options, kept in ((single, {}, False), (table, {"labels_column": "bars"}, True)):
        prepared, _ = prepare_finetuning(
            str(trained.folder), str(source), options=RecipeOptions(columns=choose_columns(**options))
        )
        assert prepared.recipe.keep_head is kept


def test_it_resumes_bit_for_bit(trained: TrainedRun, table: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        train(table, tmp_path / "run", callbacks=[RaisesAt(33, RuntimeError("stop"))])
    resumed = vitrail.train(resume=tmp_path / "run", workers=0)
    assert same(resumed.folder, trained.folder)
    assert resumed.metrics == trained.metrics


def test_evaluation_equals_scikit_learn_on_the_models_probabilities(trained: TrainedRun, table: Path) -> None:
    evaluation = vitrail.evaluate(trained.folder, vitrail.open_dataset(table, labels_column="bars"), "test")
    assert evaluation.metrics["map"] == pytest.approx(trained.metrics["map"])
    targets, probabilities = evaluation.targets.numpy(), evaluation.outputs.sigmoid().numpy()
    assert evaluation.metrics["map"] == pytest.approx(metrics.average_precision_score(targets, probabilities), abs=1e-6)
    thresholds = [row["threshold"] for row in evaluation.details["classes"]]
    expected = metrics.f1_score(targets, probabilities >= np.array(thresholds), average="macro", zero_division=0.0)
    assert evaluation.metrics["f1_macro"] == pytest.approx(expected, abs=1e-6)
    for name, (low, high) in evaluation.intervals.items():
        assert low <= evaluation.metrics[name] + 1e-9, name
        assert high >= evaluation.metrics[name] - 1e-9, name


def test_predictions_are_the_labels_above_their_thresholds(trained: TrainedRun, table: Path) -> None:
    data = vitrail.open_dataset(table, labels_column="bars")
    files = [data.test.path(index) for index in range(len(data.test))]
    predictions = vitrail.predict(trained.folder, files)
    thresholds = dict(zip(NAMES, read_metadata(trained.folder / "best")["task_state"]["thresholds"], strict=True))
    for prediction in predictions:
        assert set(prediction.labels) == {each.label for each in prediction.top if each.probability >= thresholds[each.label]}
    assert data.test.label_sets is not None
    right = [
        set(prediction.labels) == {NAMES[label] for label in data.test.label_sets.classes_of(index)}
        for index, prediction in enumerate(predictions)
    ]
    assert np.mean(right) == pytest.approx(trained.metrics["subset_accuracy"])
    assert any(not prediction.labels for prediction in predictions)  # an image may have no label


def test_a_table_with_another_column_and_single_labels_is_read_as_in_training(trained: TrainedRun, table: Path) -> None:
    other = table.with_name("other.csv")
    other.write_text("image,tags\n0.png,left\n1.png,right\n2.png,\n")
    evaluation = vitrail.evaluate(trained.folder, other)
    assert sorted(evaluation.targets.tolist()) == [[0, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert any("1 of 3 classes has no image here (middle), and counts as 0" in note for note in evaluation.notes)
    other.write_text("image,tags\n0.png,left|middle\n1.png,right\n2.png,\n")  # another separator is found there
    assert sorted(vitrail.evaluate(trained.folder, other).targets.tolist()) == [[0, 0, 0], [0, 0, 1], [1, 1, 0]]
    other.write_text("image,tags\n0.png,left;top\n")
    with pytest.raises(VitrailError, match=r"1 of the 2 classes of .* is unknown to the model: 'top'"):
        vitrail.evaluate(trained.folder, other)


def test_the_report_has_the_classes_and_their_curves(trained: TrainedRun) -> None:
    page = trained.report.read_text()
    for text in (
        "mean average precision on test, 95 % interval",
        "Precision over recall",
        "Labels that occur together",
        "Worst",
    ):
        assert text in page


def test_the_commands_say_what_they_found(
    trained: TrainedRun, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["evaluate", str(trained.folder), str(table), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["map"] == pytest.approx(trained.metrics["map"])
    assert {"f1_macro", "f1_micro", "map_micro", "interval", "classes"} <= set(found)
    assert found["test"] == pytest.approx(trained.metrics)  # as in result.json
    assert run_command(["evaluate", str(trained.folder), str(trained.folder / "last"), str(table)]) == 0
    printed = capsys.readouterr().out
    assert "mAP, micro average" in printed
    assert "Classes of lowest average precision" in printed
    assert "minus" in printed
    assert run_command(["train", str(table), "--labels-column", "bar", "--out", str(tmp_path / "x")]) == 2
    assert "has no column 'bar' for the labels; it has bars, split; did you mean 'bars'?" in capsys.readouterr().err
    assert run_command(["train", str(table), "--labels-column", "bars", "--separator", "none", "--print-recipe"]) == 2
    assert "the label is empty" in capsys.readouterr().err


def test_a_classifier_of_one_label_refuses_several(table: Path) -> None:
    model = vitrail.build("mu/8", image=(16, 24), classes=3)
    model.preprocess, model.class_names = vit_preprocess((16, 24)), NAMES
    renamed = table.with_name("renamed.csv")
    renamed.write_text(table.read_text().replace("file,bars", "file,labels").replace(",,", ",left,"))
    with pytest.raises(VitrailError, match=r"\d+ of the \d+ classes of .* are unknown to the model"):
        vitrail.evaluate(model, renamed)
    with pytest.raises(VitrailError, match="has several labels per image, and the model predicts one"):
        vitrail.evaluate(model, vitrail.open_dataset(renamed))


# Losses --------------------------------------------------------------------------------------------------------------

LOGITS = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) * 3
TARGETS = (torch.rand(7, 5, generator=torch.Generator().manual_seed(1)) < 0.4).float()


class Fixed(nn.Module):
    """A model with these logits, whatever the image."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def task(config: MultiLabel | None = None, **values: Any) -> MultiLabelTask:
    model = ViTConfig(width=12, depth=1, mlp=8, heads=2, patch=(4, 4), image=(8, 8), channels=3, classes=5)
    built = MultiLabelTask(config or MultiLabel(), model, vit_preprocess((8, 8)), tuple("abcde"))
    return replace(built, **values)


def loss_of(built: MultiLabelTask, **mixed: Any) -> float:
    batch = Batch(torch.zeros(7, 3, 8, 8), TARGETS.byte(), torch.arange(7), **mixed)
    return float(built.loss(Fixed(LOGITS), batch)[0].detach())


def test_the_losses_are_those_of_their_papers() -> None:
    p = LOGITS.double().sigmoid()
    y = TARGETS.double()
    focal = -(0.25 * y * (1 - p) ** 2 * p.log() + 0.75 * (1 - y) * p**2 * (1 - p).log())
    assert_close(focal_loss(LOGITS, TARGETS, 2.0, 0.25).double(), focal, rtol=1e-5, atol=1e-6)
    assert_close(focal_loss(LOGITS, TARGETS, 0.0), F.binary_cross_entropy_with_logits(LOGITS, TARGETS, reduction="none"))
    shifted = (p - 0.05).clamp(min=0)
    asymmetric = -(y * (1 - p) * p.log() + (1 - y) * shifted**4 * (1 - shifted).log())
    assert_close(asymmetric_loss(LOGITS, TARGETS, 1.0, 4.0, 0.05).double(), asymmetric, rtol=1e-4, atol=1e-6)
    assert loss_of(task(MultiLabel(loss="asymmetric", gamma_positive=1.0))) == pytest.approx(float(asymmetric.sum(1).mean()))


def test_weights_of_positives_are_torchs_and_come_from_the_training_images() -> None:
    matrix = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]])
    images = ArrayDataset(np.zeros((7, 8, 8, 3), np.uint8), matrix.argmax(1), ("a", "b", "c", "d", "e"))
    data = DatasetSplits("x", as_label_sets(images), as_label_sets(images), as_label_sets(images), "0")
    weighted = task(MultiLabel(balanced_loss=True, max_positive_weight=5.5)).with_data(data)
    assert weighted.positive_weights is not None
    assert weighted.positive_weights.tolist() == [1.0, 5.5, 5.5, 5.5, 5.5]  # 1/6 and 6/1 negatives per positive, limited
    expected = F.binary_cross_entropy_with_logits(LOGITS, TARGETS, pos_weight=weighted.positive_weights, reduction="none")
    assert loss_of(weighted) == pytest.approx(float(expected.sum(1).mean()))


def test_mixed_images_have_mixed_targets() -> None:
    other, lam = TARGETS.roll(1, 0), torch.linspace(0.2, 1, 7)
    mixed = loss_of(task(), mixed_targets=other.byte(), lam=lam)
    soft = lam[:, None] * TARGETS + (1 - lam)[:, None] * other
    assert mixed == pytest.approx(float(F.binary_cross_entropy_with_logits(LOGITS, soft, reduction="none").sum(1).mean()))


def test_a_new_classifier_starts_at_the_frequency_of_each_class() -> None:
    images = ArrayDataset(np.zeros((8, 8, 8, 3), np.uint8), np.array([0, 0, 0, 0, 0, 1, 1, 2]), tuple("abcde"))
    splits = as_label_sets(images)
    built = task().with_data(DatasetSplits("x", splits, splits, splits, "0"))
    model = built.build_model(vitrail.build(built.model))
    assert isinstance(model.head, nn.Linear)
    assert_close(model.head.bias.sigmoid(), (torch.tensor([5, 2, 1, 0, 0]) + 1) / 10)
    pretrained = vitrail.build(built.model)
    assert isinstance(pretrained.head, nn.Linear)
    nn.init.ones_(pretrained.head.bias)
    built.build_model(pretrained)
    assert (pretrained.head.bias == 1).all()


@pytest.mark.parametrize("thresholds", [[0.5] * 4, [0.5, 0.5, 0.5, 0.5, 2.0], "half", [0.5, 0.5, 0.5, 0.5, None], [True] * 5])
def test_damaged_thresholds_are_refused(thresholds: Any) -> None:
    with pytest.raises(VitrailError, match="thresholds of the model must be 5 numbers from 0 to 1"):
        task().with_state({"thresholds": thresholds})


def test_a_probe_selects_its_penalty_and_is_as_good_as_scikit_learn(table: Path, trained: TrainedRun) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    from vitrail.evaluation.linear_probe import linear_label_probe

    rng = np.random.default_rng(0)
    values = [rng.normal(size=(count, 6)).astype(np.float32) for count in (80, 41, 53)]
    mixing = rng.normal(size=(6, 4))
    targets = [torch.from_numpy((each @ mixing + rng.normal(size=(len(each), 4)) > 0.3).astype(np.float32)) for each in values]
    result, logits = linear_label_probe(values, targets, has_test=False, penalties=(0.01,))
    assert result.penalty == 0.01
    spread = (values[0] - values[0].mean(0)).std()
    scaled = [(each - values[0].mean(0)) / spread for each in values]
    reference = OneVsRestClassifier(LogisticRegression(C=1 / (80 * 0.01), tol=1e-8, max_iter=5000)).fit(scaled[0], targets[0])
    expected = reference.decision_function(scaled[2])
    assert_close(logits.double(), torch.from_numpy(expected).double(), rtol=0, atol=2e-2)
    assert result.map == pytest.approx(metrics.average_precision_score(targets[2], expected), abs=5e-3)
    assert result.map == mean_average_precision(logits, targets[2].bool())
