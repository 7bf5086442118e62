"""``vitrail robustness`` from the command line: JSON, a table, a page, and one sentence for a mistake."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.images import write_label_table
from tests.evaluation.test_classification import image_folder, random_model
from tests.small_models import multi_label_vit, small_vit
from vitrail.cli.main import run
from vitrail.cli.robustness import _short_names
from vitrail.evaluation.evaluate import evaluate
from vitrail.evaluation.robustness import compare_robustness, evaluate_robustness
from vitrail.weights.save import save

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _a_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(random_model(1), "one")
    save(random_model(2), "two")
    image_folder(Path("data"), "bee", "elk", "ant", each=5)


def robustness_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert run(["robustness", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_json_has_the_values_of_the_function(capsys: Capture) -> None:
    answer, found = (
        robustness_json(capsys, "one", "two", "data"),
        [evaluate_robustness(name, "data") for name in ("one", "two")],
    )
    assert (answer["images"], answer["unreadable_images"], answer["grid"], answer["split"]) == (15, 0, [2, 3], "test")
    for each, expected in zip(answer["models"], found, strict=True):
        assert (
            (each["clean"], each["mean"])
            == (expected.clean, expected.mean)
            == (evaluate(each["model"], "data").top1, expected.mean)
        )
        assert list(each["corruptions"]) == ["noise", "blur", "contrast", "jpeg", "drop", "occlude", "shuffle"]
        for name, part in each["corruptions"].items():
            score = expected.scores[name]
            assert part["top1"] == list(score.top1)
            assert (part["mean"], part["retained"]) == (score.mean, score.retained)
            assert part["severities"] == list(range(1, len(part["top1"]) + 1))
            assert len(part["strengths"]) == len(part["top1"])
    gaps = compare_robustness(*found)
    assert answer["paired"][0]["noise"] == {"difference": gaps["noise"].difference, "interval": list(gaps["noise"].interval)}
    assert answer["page"] is None


def test_several_labels_per_image(capsys: Capture) -> None:
    tagger = multi_label_vit()
    save(tagger, "tags", metadata=tagger.metadata)
    table = str(write_label_table(Path("tagged"), ["elk;bee", "ant", "", "bee;cat"]))
    found = evaluate_robustness("tags", table)
    answer = robustness_json(capsys, "tags", table)
    assert answer["models"][0]["clean"] == found.clean
    assert answer["models"][0]["corruptions"]["blur"]["ranking_precision"] == list(found.scores["blur"].by_severity)
    assert run(["robustness", "tags", table, "--out", "tags.html"]) == 0
    printed = capsys.readouterr().out
    assert "retained: mean ranking precision as a fraction of the ranking precision on clean images" in printed
    assert "Ranking precision by severity" in Path("tags.html").read_text()
    assert run(["robustness", "tags", "one", "data"]) == 2
    assert "models to compare must be for one task, got tags for multi-label, one for classification" in capsys.readouterr().err


@pytest.mark.thorough
def test_options_reach_the_function(capsys: Capture) -> None:
    plain = robustness_json(capsys, "one", "data", "--batch-size", "4", "--workers", "0", "--device", "cpu")
    assert robustness_json(capsys, "one", "data", "--split", "all")["images"] == 31
    assert robustness_json(capsys, "one", "data", "--limit", "7")["images"] == 7
    assert robustness_json(capsys, "one", "data", "--grid", "4x5")["models"][0]["corruptions"]["shuffle"]["strengths"] == [20]
    seeds = [robustness_json(capsys, "one", "data", "--seed", seed, "--split", "all")["models"] for seed in ("1", "2")]
    assert seeds[0] != seeds[1]
    assert plain["models"] == robustness_json(capsys, "one", "data")["models"]


def test_a_table_and_a_page_for_people(capsys: Capture) -> None:
    assert run(["robustness", "one", "two", "one", "data", "--out", "page.html"]) == 0
    printed, found = capsys.readouterr().out, evaluate_robustness("one", "data")
    assert printed.startswith("data, test: 15 images, cells of 2x3, accuracy at severities 1 to 5\n")
    row = next(line.split() for line in printed.splitlines() if line.strip().startswith("Noise"))
    assert row[1:8] == ["one", *(f"{right:.1%}" for right in found.scores["noise"].top1), f"{found.scores['noise'].mean:.1%}"]
    assert "one (3)" in printed
    assert "page: page.html" in printed
    assert "one (3)" in Path("page.html").read_text()
    assert run(["robustness", "one", "data"]) == 0
    assert "difference" not in capsys.readouterr().out


def test_models_get_short_unique_names(capsys: Capture) -> None:
    assert _short_names(["runs/a", "runs/b/", "runs/a"]) == ["a", "b", "a (3)"]
    assert _short_names(["runs/a"]) == ["runs/a"]
    assert _short_names(["hf:us/a", "/x/y"]) == ["hf:us/a", "/x/y"]
    assert _short_names(["/x/runs/a/best", "/x/runs/b/best"]) == ["a/best", "b/best"]
    assert _short_names(["one", "one"]) == ["one", "one (2)"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["one"], "robustness needs a model and a dataset, got 'one' alone"),
        ([], "Missing argument"),
        (["one", "nowhere"], "there is no 'nowhere'"),
        (["one", "nowhere", "data"], "nowhere does not exist"),
        (["one", "strange"], "2 of the 3 classes of strange are unknown to the model: 'beee', 'zebra'; it knows 'ant', 'bee'"),
        (["one", "headless", "data"], "the model has no classifier"),
        (
            ["one", "other", "data"],
            "3 of the 3 classes of data are unknown to the model: 'ant', 'bee', 'elk'; it knows 'a', 'b'",
        ),
        (["one", "data", "--split", "dev"], "--split"),
        (["one", "data", "--batch-size", "0"], "--batch-size"),
        (["one", "data", "--limit", "0"], "--limit"),
        (["one", "data", "--grid", "many"], "--grid must be a number or HEIGHTxWIDTH"),
        (["one", "data", "--grid", "40"], "got 40x40 for images of 12x15; try 12x15"),
        (["one", "data", "--out", "page.pdf"], "--out must end in .html"),
        (["one", "data", "--out", "gone/page.html"], "--out must be a file in a folder that exists"),
        (["one", "data", "--device", "warp"], "device must be auto, cpu, cuda, cuda:N or mps, got 'warp'"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, capsys: Capture) -> None:
    image_folder(Path("strange"), "ant", "beee", "zebra")
    save(small_vit(classes=0), "headless")
    other = random_model()
    other.class_names = ("a", "b", "c", "d", "e")
    save(other, "other")
    capsys.readouterr()
    assert run(["robustness", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
