"""``vitrail evaluate`` from the command line: one object for programs, tables for people, one sentence for a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data import pictures as drawn
from tests.evaluate.test_evaluate import LABELS, folder, model
from tests.small import vit
from vitrail.cli.main import run
from vitrail.evaluate.evaluate import measure
from vitrail.weights.checkpoint import save

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _a_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(model(1), "one")
    save(model(2), "two")
    folder(Path("data"), "bee", "elk", "ant", each=8)


def told(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run(["evaluate", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_json_tells_what_the_function_tells(capsys: Capture) -> None:
    answer, found = told(capsys, "one", "data"), measure("one", "data")
    for name in ("top1", "top5", "nll", "ece", "split"):
        assert answer[name] == getattr(found, name)
    assert answer["interval"] == {name: list(ends) for name, ends in found.interval.items()}
    assert (answer["pictures"], answer["left_out"]) == (24, 0)
    for ends, name in ((answer["interval"][name], name) for name in ("top1", "nll")):
        assert ends[0] <= answer[name] <= ends[1]
    assert sum(row["pictures"] for row in answer["classes"]) == 24
    assert answer["macro"]["recall"] == pytest.approx(sum(row["recall"] for row in answer["classes"]) / 3)
    matrix = answer["confusion"]
    assert len(matrix) == len(answer["classes"])
    assert [sum(row) for row in matrix] == [row["pictures"] for row in answer["classes"]]
    assert sum(row["times"] for row in answer["confused"]) == 24 - sum(matrix[place][place] for place in range(len(matrix)))
    assert sum(answer["reliability"]["pictures"]) == 24
    assert answer["calibrated"]["fitted_on"] == 24


def test_options_reach_the_function(capsys: Capture) -> None:
    plain = told(capsys, "one", "data", "--batch", "3", "--workers", "0", "--device", "cpu")
    for tta in ("flip", "crops"):
        answer = told(capsys, "one", "data", "--tta", tta)
        assert (answer["tta"], answer["nll"]) == (tta, measure("one", "data", tta=tta).nll)
        assert answer["nll"] != plain["nll"]
    assert told(capsys, "one", "data", "--split", "all")["pictures"] == 24 + 24 + 1
    assert told(capsys, "one", "data", "--split", "validation")["calibrated"] is None


def test_several_are_compared_with_the_first(capsys: Capture) -> None:
    answer = told(capsys, "one", "two", "one", "data")
    assert [each["model"] for each in answer["runs"]] == ["one", "two", "one"]
    assert answer["runs"][1] == told(capsys, "two", "data")
    two, same = answer["paired"]
    assert two["difference"]["top1"] == answer["runs"][1]["top1"] - answer["runs"][0]["top1"]
    assert (same["p"], same["difference"]["nll"]) == (1, 0)
    assert run(["evaluate", "one", "two", "data"]) == 0
    shown = capsys.readouterr().out
    assert "Against one" in shown
    assert "McNemar" in shown


def test_what_is_wrong_with_one_of_several_is_told_before_the_work_and_of_which(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = model()
    odd.labels = ("a", "b", "c", "d", "e")
    save(odd, "odd")
    monkeypatch.setattr("vitrail.evaluate.evaluate.measure", lambda *_: pytest.fail("began"))
    for other, sentence in (("nowhere", "nowhere does not exist"), ("odd", "odd: 3 of the 3 classes of data are unknown")):
        assert run(["evaluate", "one", other, "data"]) == 2
        assert sentence in capsys.readouterr().err


def test_a_caution_about_another_than_the_first_is_shown(capsys: Capture) -> None:
    taught = model(2)
    save(taught, "taught", facts={"data": {"name": "data"}, "recipe": {}})
    assert run(["evaluate", "one", "taught", "data", "--split", "validation"]) == 0
    assert "taught: its weights were chosen by pictures that are among these" in capsys.readouterr().out


def test_tables_for_people(capsys: Capture) -> None:
    assert run(["evaluate", "one", "data"]) == 0
    shown, found = capsys.readouterr().out, measure("one", "data")
    assert shown.startswith("data, test: 24 pictures, 3 classes of the model's 5\n")
    low, high = found.interval["top1"]
    row = next(line.split() for line in shown.splitlines() if line.strip().startswith("top-1"))
    assert row == ["top-1", f"{found.top1:.2%}", f"{low:.2%}", "to", f"{high:.2%}"]
    for words in ("Worst classes", "Most confused", "with temperature", "calibration error"):
        assert words in shown
    assert "top-5" not in shown  # of five classes, five are always right


def test_a_bad_picture_is_left_out_and_counted_and_too_many_stop(capsys: Capture) -> None:
    expected = told(capsys, "one", "data")
    Path("data/test/bee/zz.jpg").write_bytes(b"no picture")
    answer = told(capsys, "one", "data")
    assert (answer["left_out"], answer["pictures"], answer["top1"]) == (1, 24, expected["top1"])
    assert run(["evaluate", "one", "data"]) == 0
    assert "24 pictures, 3 classes of the model's 5; 1 left out, as they cannot be read" in capsys.readouterr().out
    for number in range(4):
        Path(f"data/test/elk/z{number}.jpg").write_bytes(b"no picture")
    assert run(["evaluate", "one", "data", "--workers", "0"]) == 2
    assert "pictures cannot be used, more than the share of 0.05 tolerated" in capsys.readouterr().err


def test_one_split_of_a_plain_folder_is_said(capsys: Capture) -> None:
    drawn.classes(Path("flat"), {"ant": 9, "cat": 7})
    answer = told(capsys, "one", "flat")
    assert (answer["split"], answer["pictures"]) == ("test", 2)
    assert any("no split is given" in note for note in answer["notes"])
    assert told(capsys, "one", "flat", "--split", "all")["pictures"] == 16


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["one"], "to evaluate takes a model and data, got 'one' alone"),
        ([], "Missing argument"),
        (["one", "nowhere"], "there is no 'nowhere'"),
        (["nowhere", "data"], "nowhere does not exist"),
        (["one", "strange"], "2 of the 3 classes of strange are unknown to the model: 'beee', 'zebra'; it knows 'ant', 'bee'"),
        (["nameless", "data"], "3 of the 3 classes of data are unknown to the model: 'ant', 'bee', 'elk'; its file names none"),
        (["twins", "data"], "the model calls its classes 0 and 1 both 'ant', so data cannot be matched with it"),
        (["headless", "data"], "the model has no classifier"),
        (["one", "data", "--split", "dev"], "--split"),
        (["one", "data", "--tta", "spin"], "--tta"),
        (["one", "data", "--batch", "0"], "--batch"),
        (["one", "data", "--device", "warp"], "the device 'warp' cannot be used"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: Capture) -> None:
    folder(Path("strange"), "ant", "beee", "zebra")
    odd = model()
    odd.labels = None
    save(odd, "nameless")
    odd.labels = ("ant", "ant", "bee", "cat", "elk")
    save(odd, "twins")
    save(vit(classes=0), "headless")
    capsys.readouterr()
    assert run(["evaluate", *arguments]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_classes_called_by_their_numbers_suit_weights_without_names(capsys: Capture) -> None:
    nameless = model(1)
    nameless.labels = None
    save(nameless, "nameless")
    for split in ("test", "validation", "train"):
        for name in ("bee", "elk", "ant"):
            if Path(f"data/{split}/{name}").is_dir():
                Path(f"numbers/{split}").mkdir(parents=True, exist_ok=True)
                Path(f"data/{split}/{name}").rename(f"numbers/{split}/{LABELS.index(name)}")
    folder(Path("data"), "bee", "elk", "ant", each=8)
    assert told(capsys, "nameless", "numbers")["top1"] == told(capsys, "one", "data")["top1"]
