"""``vitrail evaluate`` from the command line: one object for programs, tables for people, one sentence for a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data import images as sample_images
from tests.evaluation.test_classification import LABELS, image_folder, random_model
from tests.small_models import small_vit
from vitrail.cli.main import run
from vitrail.evaluation.evaluate import evaluate
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _a_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(random_model(1), "one")
    save(random_model(2), "two")
    image_folder(Path("data"), "bee", "elk", "ant", each=8)


def evaluate_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run(["evaluate", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_json_has_the_values_of_the_function(capsys: Capture) -> None:
    answer, found = evaluate_json(capsys, "one", "data"), evaluate("one", "data")
    for name in ("top1", "top5", "nll", "ece", "split"):
        assert answer[name] == getattr(found, name)
    assert answer["interval"] == {name: list(ends) for name, ends in found.intervals.items()}
    assert (answer["images"], answer["unreadable_images"]) == (24, 0)
    for ends, name in ((answer["interval"][name], name) for name in ("top1", "nll")):
        assert ends[0] <= answer[name] <= ends[1]
    assert sum(row["images"] for row in answer["classes"]) == 24
    assert answer["macro"]["recall"] == pytest.approx(sum(row["recall"] for row in answer["classes"]) / 3)
    matrix = answer["confusion"]
    assert len(matrix) == len(answer["classes"])
    assert [sum(row) for row in matrix] == [row["images"] for row in answer["classes"]]
    assert sum(row["count"] for row in answer["confused"]) == 24 - sum(matrix[index][index] for index in range(len(matrix)))
    assert sum(answer["reliability"]["counts"]) == 24
    assert answer["temperature_scaling"]["num_fit_images"] == 24


def test_options_reach_the_function(capsys: Capture) -> None:
    plain = evaluate_json(capsys, "one", "data", "--batch-size", "3", "--workers", "0", "--device", "cpu")
    for tta in ("flip", "crops"):
        answer = evaluate_json(capsys, "one", "data", "--tta", tta)
        assert (answer["tta"], answer["nll"]) == (tta, evaluate("one", "data", tta=tta).nll)
        assert answer["nll"] != plain["nll"]
    assert evaluate_json(capsys, "one", "data", "--split", "all")["images"] == 24 + 24 + 1
    assert evaluate_json(capsys, "one", "data", "--split", "validation")["temperature_scaling"] is None


def test_several_are_compared_with_the_first(capsys: Capture) -> None:
    answer = evaluate_json(capsys, "one", "two", "one", "data")
    assert [each["model"] for each in answer["runs"]] == ["one", "two", "one"]
    assert answer["runs"][1] == evaluate_json(capsys, "two", "data")
    two, same = answer["paired"]
    assert two["difference"]["top1"] == answer["runs"][1]["top1"] - answer["runs"][0]["top1"]
    assert (same["p"], same["difference"]["nll"]) == (1, 0)
    assert run(["evaluate", "one", "two", "data"]) == 0
    printed = capsys.readouterr().out
    assert "Difference from one" in printed
    assert "McNemar" in printed


def test_an_error_of_one_of_several_models_is_reported_before_the_work_with_its_name(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = random_model()
    odd.class_names = ("a", "b", "c", "d", "e")
    save(odd, "odd")
    monkeypatch.setattr("vitrail.evaluation.evaluate.evaluate", lambda *_: pytest.fail("began"))
    for other, sentence in (("nowhere", "nowhere does not exist"), ("odd", "odd: 3 of the 3 classes of data are unknown")):
        assert run(["evaluate", "one", other, "data"]) == 2
        assert sentence in capsys.readouterr().err


def test_a_leakage_warning_of_another_model_than_the_first_is_shown(capsys: Capture) -> None:
    trained = random_model(2)
    save(trained, "trained", metadata={"dataset": {"name": "data"}, "recipe": {}})
    assert run(["evaluate", "one", "trained", "data", "--split", "validation"]) == 0
    assert "trained: its weights were selected on images that are among these" in capsys.readouterr().out


def test_tables_for_people(capsys: Capture) -> None:
    assert run(["evaluate", "one", "data"]) == 0
    printed, found = capsys.readouterr().out, evaluate("one", "data")
    assert printed.startswith("data, test: 24 images, 3 classes of the model's 5\n")
    low, high = found.intervals["top1"]
    row = next(line.split() for line in printed.splitlines() if line.strip().startswith("top-1"))
    assert row == ["top-1", f"{found.top1:.2%}", f"{low:.2%}", "to", f"{high:.2%}"]
    for words in ("Classes of lowest F1", "Most confused", "with temperature", "ECE"):
        assert words in printed
    assert "top-5" not in printed  # with five classes, top-5 is always correct


def test_a_bad_image_is_left_out_and_counted_and_too_many_stop_the_evaluation(capsys: Capture) -> None:
    expected = evaluate_json(capsys, "one", "data")
    Path("data/test/bee/zz.jpg").write_bytes(b"no image")
    answer = evaluate_json(capsys, "one", "data")
    assert (answer["unreadable_images"], answer["images"], answer["top1"]) == (1, 24, expected["top1"])
    assert run(["evaluate", "one", "data"]) == 0
    assert "24 images, 3 classes of the model's 5; 1 left out as unreadable" in capsys.readouterr().out
    for number in range(4):
        Path(f"data/test/elk/z{number}.jpg").write_bytes(b"no image")
    assert run(["evaluate", "one", "data", "--workers", "0"]) == 2
    assert "images cannot be used, more than the tolerated fraction of 0.05" in capsys.readouterr().err


def test_a_plain_folder_is_evaluated_as_a_whole_and_that_of_the_training_with_its_split_noted(capsys: Capture) -> None:
    sample_images.write_class_folders(Path("flat"), {"ant": 9, "cat": 7})
    answer = evaluate_json(capsys, "one", "flat")
    assert (answer["split"], answer["images"]) == ("all", 16)
    save(random_model(1), "trained", metadata={"dataset": {"name": "flat"}, "recipe": {}})
    answer = evaluate_json(capsys, "trained", "flat")
    assert (answer["split"], answer["images"]) == ("test", 2)
    assert any("no splits given" in note for note in answer["notes"])
    assert evaluate_json(capsys, "trained", "flat", "--split", "all")["images"] == 16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["one"], "evaluate needs a model and a dataset, got 'one' alone"),
        ([], "Missing argument"),
        (["one", "nowhere"], "there is no 'nowhere'"),
        (["nowhere", "data"], "nowhere does not exist"),
        (["one", "strange"], "2 of the 3 classes of strange are unknown to the model: 'beee', 'zebra'; it knows 'ant', 'bee'"),
        (["nameless", "data"], "3 of the 3 classes of data are unknown to the model: 'ant', 'bee', 'elk'; its file names none"),
        (["twins", "data"], "classes 0 and 1 of the model are both named 'ant', so data cannot be matched with them"),
        (["headless", "data"], "the model has no classifier"),
        (["one", "t.csv"], "t.csv, line 3: the label is empty; fill it in or remove the row\n"),
        (["one", "t.csv", "--separator", ";"], "one predicts one label per image, so --separator ; cannot split them"),
        (["one", "data", "--split", "dev"], "--split"),
        (["one", "data", "--tta", "spin"], "--tta"),
        (["one", "data", "--batch-size", "0"], "--batch-size"),
        (["one", "data", "--device", "warp"], "device must be auto, cpu, cuda, cuda:N or mps, got 'warp'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: Capture) -> None:
    image_folder(Path("strange"), "ant", "beee", "zebra")
    odd = random_model()
    odd.class_names = None
    save(odd, "nameless")
    odd.class_names = ("ant", "ant", "bee", "cat", "elk")
    save(odd, "twins")
    save(small_vit(classes=0), "headless")
    Path("t.csv").write_text("file,labels\n0.jpg,ant;bee\n1.jpg,\n")
    capsys.readouterr()
    assert run(["evaluate", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_classes_named_by_index_match_weights_without_class_names(capsys: Capture) -> None:
    nameless = random_model(1)
    nameless.class_names = None
    save(nameless, "nameless")
    for split in ("test", "validation", "train"):
        for name in ("bee", "elk", "ant"):
            if Path(f"data/{split}/{name}").is_dir():
                Path(f"numbers/{split}").mkdir(parents=True, exist_ok=True)
                Path(f"data/{split}/{name}").rename(f"numbers/{split}/{LABELS.index(name)}")
    image_folder(Path("data"), "bee", "elk", "ant", each=8)
    assert evaluate_json(capsys, "nameless", "numbers")["top1"] == evaluate_json(capsys, "one", "data")["top1"]
