"""``vitrail predict`` of boxes: a row each, COCO results with the ids of a file, drawn images, label files of YOLO."""

import contextlib
import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.full_disk import full_disk
from tests.data import images as sample_images
from tests.reference_libraries import reference_library
from tests.small_detector import CLASSES, random_detector
from tests.small_models import small_config
from vitrail.cli.main import run
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.columns import Columns
from vitrail.data.sources.content_split import SplitFractions
from vitrail.data.sources.open import open_dataset
from vitrail.inference.predict import predict
from vitrail.models.build import build, get_encoder
from vitrail.plot.box_image import draw_boxes

Capture = pytest.CaptureFixture[str]
FILES = ["in/a.jpg", "in/b.png", "in/deep/c.jpg"]
THRESHOLDS = (0.04, 0.03, 0.029)  # the scores of a model with random weights are low
CATEGORY_IDS = {"star": 1, "disc": 7, "square": 12}


@pytest.fixture(autouse=True)
def _a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save ``run``, a detector with thresholds of its own, and ``in`` with three images."""
    monkeypatch.chdir(tmp_path)
    save_run("run")
    for number, name in enumerate(FILES):
        sample_images.write_image(tmp_path / name, number, (48, 64 + number))


def save_run(name: str, thresholds: tuple[float, ...] = THRESHOLDS) -> None:
    model = random_detector()
    metadata = {
        **get_encoder(model).metadata,
        "dataset": {"name": "x", "fingerprint": "", "image_size": [20, 30]},
        "task_state": {"thresholds": list(thresholds)},
    }
    Path(name).mkdir()
    (Path(name) / "recipe.json").write_text("{}")
    vitrail.save(model, Path(name) / "best", metadata=metadata)


def expected(**options: Any) -> list[Any]:
    return predict("run", FILES, **options)


def write_truth(path: Path, seed: int = 0) -> Path:
    """Write a COCO file with objects near some of the detections, mostly of their class, a crowd, and an image that is not in
    ``in``; ids are in no order."""
    generator, annotations = np.random.default_rng(seed), list[dict[str, Any]]()
    for row, image_id in zip(expected(threshold=0.0), (31, 4, 20), strict=True):
        for number in generator.permutation(len(row.boxes))[:6].tolist():
            left, top, right, bottom = np.array(row.boxes[number].box) + generator.normal(0, 0.7, 4)
            label = row.boxes[number].label if generator.random() < 0.8 else "star"
            if min(right - left, bottom - top) < 1:
                continue
            annotations.append(
                {
                    "id": len(annotations) + 1, "image_id": image_id, "category_id": CATEGORY_IDS[label],
                    "bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top),
                    "iscrowd": int(number == 3),
                }
            )  # fmt: skip
    names = ("a.jpg", "b.png", "deep/c.jpg", "other/c.jpg")
    images = [{"id": number, "file_name": name} for number, name in zip((31, 4, 20, 2), names, strict=True)]
    categories = [{"id": number, "name": name} for name, number in CATEGORY_IDS.items()]
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def test_rows_have_a_box_each_from_the_thresholds_on(capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--out", "boxes.csv"]) == 0
    assert capsys.readouterr().out == "3 images, 0 with an error: boxes.csv\n"
    text = Path("boxes.csv").read_text()
    assert text.splitlines()[0] == "file,label,score,left,top,right,bottom,error"
    rows = list(csv.DictReader(io.StringIO(text)))
    boxes = [(row.file, box) for row in expected() for box in row.boxes]
    assert len(rows) == len(boxes) > 6
    for row, (file, box) in zip(rows, boxes, strict=True):
        assert (row["file"], row["label"], float(row["score"]), row["error"]) == (file, box.label, box.score, "")
        assert tuple(float(row[side]) for side in ("left", "top", "right", "bottom")) == box.box
        assert box.score >= THRESHOLDS[CLASSES.index(box.label)]
    for row in expected():
        scores = [box.score for box in row.boxes]
        assert scores == sorted(scores, reverse=True)
    every = [box for row in expected(threshold=0.0) for box in row.boxes]
    assert sum(box.score >= THRESHOLDS[CLASSES.index(box.label)] for box in every) == len(boxes) < len(every)


def test_json_and_the_table_have_the_same_boxes(capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line, row in zip(lines, expected(), strict=True):
        assert line["size"] == list(row.size) == [48, 64 + FILES.index(row.file)]
        assert line["boxes"] == [{**asdict(box), "box": list(box.box)} for box in row.boxes]
    assert run(["predict", "run", "in", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"] == lines
    assert run(["predict", "run", "in"]) == 0
    for line, row in zip(capsys.readouterr().out.splitlines()[1:], expected(), strict=True):
        assert line.split()[:2] == [row.file, str(len(row.boxes))]
        first = row.boxes[0].label
        assert f"{sum(box.label == first for box in row.boxes)} {first}" in line


def test_a_threshold_is_that_of_every_class(capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--jsonl", "--threshold", "0.035"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for line, row in zip(lines, expected(threshold=0.0), strict=True):
        assert len(line["boxes"]) == len(row.above(0.035).boxes) == sum(box.score >= 0.035 for box in row.boxes)
        assert row.above(0.035).boxes == row.boxes[: len(line["boxes"])]
    assert run(["predict", "run", "in", "--jsonl", "--threshold", "1"]) == 0  # nothing is found, which is legal
    assert [json.loads(line)["boxes"] for line in capsys.readouterr().out.splitlines()] == [[], [], []]
    assert run(["predict", "run", "in", "--csv", "--threshold", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"{name},,,,,,," for name in FILES]


@pytest.mark.parity
def test_pycocotools_computes_the_metrics_of_evaluate_from_the_results(capsys: Capture) -> None:
    """All boxes are in the results, whatever the thresholds of the model."""
    truth = write_truth(Path("in/truth.json"))
    sample_images.write_image(Path("in/other/c.jpg"), 9, (30, 41))
    save_run("cautious", (0.9, 0.9, 0.9))
    assert run(["predict", "cautious", "in", "--out", "boxes.json", "--annotations", str(truth)]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("4 images, 0 with an error: boxes.json\n", "")
    coco, evaluation = (reference_library(f"pycocotools.{name}") for name in ("coco", "cocoeval"))
    with contextlib.redirect_stdout(io.StringIO()):
        known = coco.COCO(str(truth))
        evaluator = evaluation.COCOeval(known, known.loadRes("boxes.json"), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    data = open_dataset(truth, split_fractions=SplitFractions(0.0, 0.0))
    metrics = vitrail.evaluate("run", data, split="train").metrics
    names = ("ap", "ap50", "ap75", "ap_small")
    assert [metrics[name] for name in names] == pytest.approx(evaluator.stats[:4].tolist(), abs=1e-9)
    assert metrics["ap50"] > 0.1
    assert metrics["ar100"] == pytest.approx(evaluator.stats[8], abs=1e-9)


def test_results_have_the_ids_of_the_annotations_and_the_threshold_that_is_named(capsys: Capture) -> None:
    truth = write_truth(Path("truth.json"))
    categories = [{"id": "x7", "name": "disc"}, {"id": 3, "name": "star"}, {"id": 5, "name": "moon"}]
    truth.write_text(json.dumps({**json.loads(truth.read_text()), "categories": categories}))
    words = ["predict", "run", "in", "--out", "boxes.json", "--annotations", "truth.json", "--threshold", "0.03"]
    assert run(words) == 0
    err = capsys.readouterr().err
    assert "truth.json has no category for 1 of the model's classes, whose boxes are left out: square" in err
    assert "3 of the 4 images of truth.json are predicted; metrics count the others as empty" in err
    ids, numbers = {"disc": "x7", "star": 3}, dict(zip(FILES, (31, 4, 20), strict=True))
    assert json.loads(Path("boxes.json").read_text()) == [
        {
            "image_id": numbers[row.file], "category_id": ids[box.label],
            "bbox": [*box.box[:2], box.box[2] - box.box[0], box.box[3] - box.box[1]], "score": box.score,
        }
        for row in expected(threshold=0.03)
        for box in row.boxes
        if box.label in ids
    ]  # fmt: skip


def test_results_without_annotations_name_images_and_categories(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert run(["predict", "run", "in", "--out", "out/boxes.json"]) == 0
    results = json.loads(Path("out/boxes.json").read_text())
    assert len(results) == sum(len(row.boxes) for row in expected(threshold=0.0))
    for result in results:
        assert result["file_name"] == f"../{FILES[result['image_id'] - 1]}"
        assert result["category_name"] == CLASSES[result["category_id"] - 1]
    assert run(["predict", "run", "in", "--out", "none.json", "--threshold", "1"]) == 0
    assert json.loads(Path("none.json").read_text()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": [{"id": 1, "file_name": "a.jpg"}]}, "in/b.png is not an image of truth.json; name the COCO file that"),
        (
            {"images": [{"id": number, "file_name": name} for number, name in enumerate(("a.jpg", "b.png", "c.jpg", "c.jpg"))]},
            "in/deep/c.jpg could be several images of truth.json",
        ),
        ({"images": []}, "truth.json has no images and categories with ids"),
        ({"images": [{"id": 1}]}, "truth.json has images or categories without an id and a name; is it a COCO file?"),
        (
            {"categories": [{"id": 1, "name": "sun"}]},
            "none of the model's classes, such as 'disc', 'square', 'star', is a category of truth.json, which has 'sun'",
        ),
        (
            {"categories": [{"id": 1, "name": "disc"}, {"id": 2, "name": "disc"}]},
            "truth.json has two categories named 'disc', 1 and 2",
        ),
    ],
)
def test_annotations_without_the_ids_are_one_sentence(changes: dict[str, Any], message: str, capsys: Capture) -> None:
    truth = write_truth(Path("truth.json"))
    truth.write_text(json.dumps({**json.loads(truth.read_text()), **changes}))
    assert run(["predict", "run", "in", "--out", "boxes.json", "--annotations", "truth.json"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("boxes.json").exists()


def test_one_image_of_the_annotations_is_predicted_once(capsys: Capture) -> None:
    write_truth(Path("truth.json"))
    sample_images.write_image(Path("copy/a.jpg"), 5)
    assert run(["predict", "run", "in", "copy", "--out", "boxes.json", "--annotations", "truth.json"]) == 2
    assert "in/a.jpg and copy/a.jpg are the same image of truth.json; leave one of them out" in capsys.readouterr().err


def test_a_folder_has_the_images_with_their_boxes(capsys: Capture) -> None:
    assert run(["predict", "run", "in", "--out", "drawn"]) == 0
    assert capsys.readouterr().out == "3 images, 0 with an error: drawn\n"
    for row in expected():
        labels = np.array([CLASSES.index(box.label) for box in row.boxes])
        boxes, scores = np.array([box.box for box in row.boxes]), np.array([box.score for box in row.boxes])
        with Image.open(row.file) as image, Image.open(Path("drawn", f"{Path(row.file).stem}.jpg")) as drawn:
            with_boxes = draw_boxes(image, boxes, labels, CLASSES, scores=scores)
            assert drawn.size == image.size
            assert np.abs(np.asarray(drawn) - np.asarray(with_boxes).astype(int)).mean() < 12  # it is a JPEG
    time = Path("drawn/a.jpg").stat().st_mtime_ns
    Path("drawn/b.jpg").unlink()
    assert run(["predict", "run", "in", "--out", "drawn"]) == 0
    assert Path("drawn/b.jpg").exists()
    assert Path("drawn/a.jpg").stat().st_mtime_ns == time
    capsys.readouterr()
    assert run(["predict", "run", "in", "--out", "drawn", "--threshold", "0.7"]) == 2
    assert "drawn was started with another threshold; name another folder" in capsys.readouterr().err
    assert run(["predict", "run", "in", "--out", "drawn", "--format", "yolo"]) == 2
    assert "drawn was started with another output" in capsys.readouterr().err


def test_label_files_of_yolo_are_read_as_a_dataset(tmp_path: Path) -> None:
    assert run(["predict", "run", "in", "--out", "labels", "--format", "yolo"]) == 0
    assert Path("labels/classes.txt").read_text() == "disc\nsquare\nstar\n"
    (tmp_path / "in").rename("images")
    Path("images/deep/c.jpg").rename("images/c.jpg")
    Path("data.yaml").write_text("train: images\nnames: [disc, square, star]\n")
    data = open_dataset("data.yaml", columns=Columns(boxes=True), split_fractions=SplitFractions(0.0, 0.0))
    rows = {Path(row.file).name: row for row in predict("run", sorted(Path("images").glob("*.*")))}
    assert len(data.train) == 3
    for index in range(3):
        row, objects = rows[Path(data.train.describe(index)).name], data.train.objects(index)
        np.testing.assert_allclose(objects.boxes, [box.box for box in row.boxes], atol=1e-6)
        assert [CLASSES[label] for label in objects.labels] == [box.label for box in row.boxes]


def test_a_csv_file_of_boxes_is_read_as_a_dataset() -> None:
    assert run(["predict", "run", "in", "--out", "boxes.csv"]) == 0
    data = open_dataset("boxes.csv", columns=Columns(boxes=True), split_fractions=SplitFractions(0.0, 0.0))
    assert data.class_names == tuple(sorted(CLASSES))
    for index, row in enumerate(expected()):
        np.testing.assert_allclose(data.train.objects(index).boxes, [box.box for box in row.boxes])


def test_part_files_have_rows_of_json(capsys: Capture) -> None:
    words = ["predict", "run", "in", "--out", "parts", "--format", "jsonl", "--rows-per-file", "2"]
    assert run(words) == 0
    assert "3 images, 0 with an error, in 2 parts: parts" in capsys.readouterr().out
    lines = [json.loads(line) for path in sorted(Path("parts").glob("*.jsonl")) for line in path.read_text().splitlines()]
    assert [(line["file"], len(line["boxes"])) for line in lines] == [(row.file, len(row.boxes)) for row in expected()]


def test_a_bad_image_affects_no_other(capsys: Capture) -> None:
    Path("in/aa.jpg").write_bytes(b"")
    assert run(["predict", "run", "in", "--out", "drawn"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "4 images, 1 with an error: drawn\n"
    assert "in/aa.jpg  cannot be decoded: it is empty" in printed.err
    assert sorted(path.name for path in Path("drawn").glob("*.jpg")) == ["a.jpg", "b.jpg", "c.jpg"]
    assert run(["predict", "run", "in", "--out", "boxes.json", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"] == [{"file": "in/aa.jpg", "error": "cannot be decoded: it is empty"}]
    assert {result["image_id"] for result in json.loads(Path("boxes.json").read_text())} == {1, 3, 4}
    assert run(["predict", "run", "in", "--csv"]) == 1
    assert "in/aa.jpg,,,,,,,cannot be decoded: it is empty" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "in"], "boxes need a folder of their own, got in with"),
        (["--out", "boxes", "--rows-per-file", "3"], "images with boxes are one file per image; add --format jsonl"),
        (["--out", "boxes", "--overlay"], "--overlay needs a model of masks, and run has none"),
        (["--format", "yolo"], "--format needs a folder: --out boxes"),
        (["--out", "boxes.csv", "--format", "yolo"], "--format needs a folder: --out boxes"),
        (["--annotations", "a.json"], "--annotations needs a file of COCO results: --out boxes.json"),
        (["--out", "boxes.json", "--annotations", "gone.json"], "gone.json cannot be read: No such file or directory"),
        (["--threshold", "1.5"], "threshold must be from 0 to 1, got 1.5; try --threshold 0.5"),
        (["--tta", "scales"], "tta=scales is not for boxes"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(arguments: list[str], message: str, capsys: Capture) -> None:
    before = sorted(Path().rglob("*"))
    assert run(["predict", "run", "in", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert sorted(Path().rglob("*")) == before


def test_other_models_have_no_boxes(capsys: Capture) -> None:
    model = build(small_config())
    model.preprocess = Preprocess((12, 15))
    vitrail.save(model, "classifier")
    for arguments, message in (
        (["--out", "boxes.json", "--annotations", "a.json"], "boxes.json: .json is for masks and boxes; try boxes.jsonl"),
        (["--out", "boxes", "--format", "yolo"], "--format needs a model of boxes, and classifier has none"),
        (["--threshold", "0.5"], "a threshold is for boxes or for several labels per image, and not for classification"),
    ):
        assert run(["predict", "classifier", "in", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_tiles_and_flips_are_those_of_the_function(capsys: Capture) -> None:
    ways: list[tuple[list[str], dict[str, Any]]] = [
        (["--tile", "20x30", "--overlap", "0.5"], {"tile": (20, 30), "overlap": 0.5}),
        (["--tta", "flip"], {"tta": "flip"}),
    ]
    for arguments, options in ways:
        assert run(["predict", "run", "in", "--jsonl", *arguments]) == 0
        printed = [json.loads(line)["boxes"] for line in capsys.readouterr().out.splitlines()]
        assert printed == [json.loads(json.dumps(row.plain()))["boxes"] for row in expected(**options)]
        assert printed != [json.loads(json.dumps(row.plain()))["boxes"] for row in expected()]


def test_a_full_disk_leaves_no_part_of_a_file(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    with full_disk(700, monkeypatch):
        assert run(["predict", "run", "in", "--out", "boxes.json"]) == 1
    assert "File too large" in capsys.readouterr().err
    assert not list(Path().glob("*boxes*"))
