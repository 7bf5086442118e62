"""``vitrail data`` and ``vitrail bench data`` from the command line: what they print, write and refuse."""

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.full_disk import full_disk
from tests.data.images import write_class_folders, write_image
from tests.tiers import quick_first
from vitrail.cli.main import run
from vitrail.data.pack_reader import read_pack
from vitrail.data.sources.open import open_dataset
from vitrail.evaluation.probe import load_suite

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_class_folders(tmp_path / "data" / "train", {"a": 12, "<b> [x]": 10})
    write_class_folders(tmp_path / "data" / "val", {"a": 3, "<b> [x]": 3}, first=100)
    return tmp_path / "data"


def corrupt_dataset(folder: Path) -> None:
    (folder / "train" / "a" / "bad.jpg").write_bytes(b"<script>alert(1)</script>")
    (folder / "val" / "a" / "leak.jpg").write_bytes((folder / "train" / "a" / "1.jpg").read_bytes())
    (folder / "train" / "<b> [x]" / "copy.jpg").write_bytes((folder / "train" / "<b> [x]" / "1.jpg").read_bytes())


def test_check_accepts_a_clean_dataset(folder: Path, capsys: Capture) -> None:
    assert run(["data", "check", str(folder)]) == 0
    printed = capsys.readouterr()
    assert "all images are readable" in printed.out
    assert "<b> [x]" in printed.out
    assert "28 JPEG RGB" in printed.out
    assert printed.err == ""


def test_check_names_what_is_wrong_and_exits_with_1(folder: Path, capsys: Capture) -> None:
    corrupt_dataset(folder)
    before = sorted(str(path) for path in folder.rglob("*"))
    assert run(["data", "check", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "bad.jpg cannot be decoded" in printed
    assert "the same image in two splits (leakage): 1" in printed
    assert "leak.jpg" in printed
    assert run(["data", "check", str(folder), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ok"]
    assert [Path(item["location"]).name for item in answer["bad"]] == ["bad.jpg"]
    assert {Path(where).name for where in answer["leaks"][0]["locations"]} == {"1.jpg", "leak.jpg"}
    assert {Path(where).name for where in answer["duplicates"][0]["locations"]} == {"1.jpg", "copy.jpg"}
    assert answer["classes"]["a"] == {"train": 12, "validation": 4, "test": 0}
    assert answer["splits"] == {"train": 23, "validation": 7, "test": 0}
    assert sorted(str(path) for path in folder.rglob("*")) == before  # nothing deleted, nothing added


class Page(HTMLParser):
    """Collect the tags of a page and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_is_self_contained_and_runs_nothing(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    corrupt_dataset(folder)
    (folder / "train" / "a" / "<img src=x onerror=alert(1)>.jpg").write_bytes(b"no")
    assert run(["data", "check", str(folder), "--page", str(tmp_path / "check.html")]) == 1
    page = Page()
    text = (tmp_path / "check.html").read_text()
    page.feed(text)
    assert page.tags.count("img") == 1
    assert "script" not in page.tags
    assert all(source.startswith("data:image/") for source in page.sources)
    assert "&lt;b&gt; [x]" in text
    assert "leak.jpg" in text
    assert str(tmp_path / "check.html") in capsys.readouterr().out


def write_table(folder: Path, header: str, targets: list[str]) -> Path:
    """Write images and a table of them in train and validation."""
    for number in range(len(targets)):
        write_image(folder / f"{number}.jpg", number)
    rows = [f"{number}.jpg,{target},{'val' if number % 4 == 3 else 'train'}" for number, target in enumerate(targets)]
    (folder / "t.csv").write_text("\n".join([f"path,{header},split", *rows]))
    return folder / "t.csv"


def test_check_of_several_labels_says_which_occur_together(tmp_path: Path, capsys: Capture) -> None:
    table = write_table(tmp_path, "tags", ["hat;<tie>", "hat;<tie>", "", "hat", "Hat;shoe", "shoe", "hat;shoe", "hat"])
    page = tmp_path / "check.html"
    assert run(["data", "check", str(table), "--json", "--page", str(page)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["labels_per_image"] == {"mean": 11 / 8, "max": 2}
    assert answer["unlabelled"] == {"train": 1, "validation": 0}
    assert answer["pairs"][0] == {"labels": ["hat", "<tie>"], "images": 2, "jaccard": 0.4}
    assert answer["absent"] == {"validation": ["<tie>", "Hat", "shoe"]}
    assert answer["similar"] == [["Hat", "hat"]]
    assert answer["classes"]["hat"] == {"train": 3, "validation": 2, "test": 0}
    text = page.read_text()
    assert "Labels that occur together" in text
    assert "&lt;tie&gt;" in text
    assert "<tie>" not in text
    assert run(["data", "check", str(table)]) == 0
    printed = capsys.readouterr().out
    assert "labels per image: 1.38 on average, at most 2" in printed
    assert "no validation image has the label <tie>, Hat, shoe" in printed
    assert "almost the same name: 'Hat' and 'hat'" in printed
    assert run(["data", "check", str(table), "--separator", "none"]) == 2
    assert "line 4: the label is empty" in capsys.readouterr().err


def test_check_of_numbers_names_outliers(tmp_path: Path, capsys: Capture) -> None:
    table = write_table(tmp_path, "age,label", [f"{30 + number},x" for number in range(11)] + ["999,x"])
    page = tmp_path / "check.html"
    assert run(["data", "check", str(table), "--target", "Age", "--json", "--page", str(page)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["numbers"]["age"]["train"] == {
        "minimum": 30, "mean": 35, "maximum": 40, "std": pytest.approx(3.3, abs=0.1), "missing": 0,
    }  # fmt: skip
    assert [(Path(each["location"]).name, each["value"], each["split"]) for each in answer["outliers"]] == [
        ("11.jpg", 999, "validation")
    ]
    assert answer["classes"] == {}
    assert "Outliers (1)" in page.read_text()
    assert run(["data", "check", str(table), "--target", "age"]) == 0
    assert "age 999: " in capsys.readouterr().out
    assert run(["data", "check", str(table), "--target", "edge"]) == 2
    assert "has no column 'edge' for the target; it has age, label, split; did you mean 'age'?" in capsys.readouterr().err


@pytest.mark.parametrize("augment", ["none", "strong2"])
def test_show_draws_several_labels_and_numbers(augment: str, tmp_path: Path, capsys: Capture) -> None:
    table = write_table(
        tmp_path, "tags,age", [f"hat;{name},{number}" for number, name in enumerate(["tie", "shoe", "bag"] * 3)]
    )
    command = [
        "data",
        "show",
        str(table),
        "--out",
        str(tmp_path / "b.png"),
        "--batch-size",
        "3",
        "--image-size",
        "32",
        "--json",
    ]
    assert run([*command, "--augment", augment]) == 0
    labels = json.loads(capsys.readouterr().out)["labels"]
    assert all("hat" in label and ", " in label for label in labels)
    assert any("%" in label for label in labels) == (augment == "strong2")
    assert run([*command, "--target", "age", "--split", "validation"]) == 0
    assert json.loads(capsys.readouterr().out)["labels"] == ["3", "7"]


def test_pack_and_shard_take_the_columns_of_the_targets(tmp_path: Path, capsys: Capture) -> None:
    table = write_table(tmp_path, "worn,age,label", ["hat|tie,3,x", "hat,4,y", ",5,x", "tie,6,y"])
    assert run(["data", "pack", str(table), str(tmp_path / "a.pack"), "--labels-column", "worn", "--separator", "|"]) == 0
    assert read_pack(tmp_path / "a.pack")[0]["train"].class_names == ("hat", "tie")
    assert run(["data", "shard", str(table), str(tmp_path / "shards"), "--target", "age", "--target", "label"]) == 2
    assert "line 2: the target label must be a number, got 'x'" in capsys.readouterr().err
    assert run(["data", "shard", str(table), str(tmp_path / "shards"), "--target", "age"]) == 0
    assert open_dataset(tmp_path / "shards").target_names == ("age",)


@pytest.mark.parametrize("augment", ["none", "strong2", "textbook", "eval"])
def test_show_draws_the_batch_the_model_will_see(augment: str, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "batch.png"
    options = ["--out", str(out), "--augment", augment, "--image-size", "32", "--batch-size", "6", "--json"]
    assert run(["data", "show", str(folder), *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["indices"]) == len(answer["labels"]) == 6
    assert answer["image"] == [32, 32]
    samples = out.read_bytes()
    with Image.open(out) as image:
        assert min(image.size) > 200
    assert run(["data", "show", str(folder), *options]) == 0
    assert out.read_bytes() == samples  # the same step gives the same image
    assert run(["data", "show", str(folder), *options, "--step", "1"]) == 0
    assert out.read_bytes() != samples


def test_show_takes_settings_and_the_other_splits(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = ["--out", str(tmp_path / "b.png")]
    options = ["--set", "augment.mixup=0.5", "--batch-size", "4", "--image-size", "24x32"]
    assert run(["data", "show", str(folder), *out, *options]) == 0
    assert run(["data", "show", "fashion", *out, "--split", "test", "--batch-size", "4"]) == 0
    assert "drew batch 0 of fashion (test, 4 images)" in capsys.readouterr().out
    assert run(["data", "show", str(folder), *out, "--split", "test"]) == 2
    assert "has no test split; try --split train" in capsys.readouterr().err


def test_show_tells_what_each_fit_costs_and_draws_it(tmp_path: Path, capsys: Capture) -> None:
    for number in range(6):
        write_image(tmp_path / "wide" / "train" / "ab"[number % 2] / f"{number}.png", number, (30, 60))
    options = ["--out", str(tmp_path / "b.png"), "--image-size", "24", "--batch-size", "4", "--fit", "pad"]
    assert run(["data", "show", str(tmp_path / "wide"), *options, "--json"]) == 0
    fits = json.loads(capsys.readouterr().out)["fits"]
    assert fits == {
        "crop": {"lost": 0.5, "padding": 0.0, "distortion": 1.0},
        "pad": {"lost": 0.0, "padding": 0.5, "distortion": 1.0},
        "stretch": {"lost": 0.0, "padding": 0.0, "distortion": 2.0},
    }
    with Image.open(tmp_path / "b.png") as image:
        both = image.height
    assert run(["data", "show", str(tmp_path / "wide"), *options[:2], "--image-size", "24x48", "--batch-size", "4"]) == 0
    assert "stretch" in capsys.readouterr().out
    with Image.open(tmp_path / "b.png") as image:
        assert image.height < both  # nothing to compare where the images fit


def test_a_pack_can_be_opened(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    corrupt_dataset(folder)
    out = tmp_path / "mine.pack"
    assert run(["data", "pack", str(folder), str(out), "--size", "16x12", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["counts"] == {"train": 23, "validation": 7}
    assert len(answer["skipped"]) == 1
    assert read_pack(out)[1]["size"] == "16x12"
    assert run(["data", "check", str(out)]) == 1  # the leak is in the pack too
    assert "leak.jpg" not in capsys.readouterr().out  # but its file name is not
    assert run(["data", "pack", str(folder), str(out), "--store", "jpeg"]) == 0
    assert "1 skipped" in capsys.readouterr().out
    assert run(["data", "pack", "fashion", str(tmp_path / "f.pack"), "--size", "full"]) == 0
    assert run(["data", "check", str(tmp_path / "f.pack")]) == 0


def test_the_input_is_never_overwritten(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    table = tmp_path / "list.csv"
    table.write_text("path,label\n" + "".join(f"{path},{path.parent.name}\n" for path in folder.rglob("*.jpg")))
    before = table.read_bytes()
    assert run(["data", "pack", str(table), str(table)]) == 2
    assert "must not be the dataset itself" in capsys.readouterr().err
    assert table.read_bytes() == before
    os.mkfifo(tmp_path / "pipe")
    assert run(["data", "pack", str(folder), str(tmp_path / "pipe")]) == 2


def test_an_empty_pack_is_refused(tmp_path: Path, capsys: Capture) -> None:
    root = write_class_folders(tmp_path / "data", {"a": 3, "b": 3})
    for file in root.rglob("*.jpg"):
        file.write_bytes(b"no")
    assert run(["data", "pack", str(root), str(tmp_path / "x.pack")]) == 2
    assert "nothing could be packed" in capsys.readouterr().err
    assert run(["data", "pack", "fashion", str(tmp_path / "x.pack"), "--store", "jpeg"]) == 2
    assert "these images have none" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_names_cannot_steer_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    write_class_folders(tmp_path, {"a\x1b[31m": 3, "b\nc": 3})
    (tmp_path / "b\nc" / "x\x07.jpg").write_bytes(b"no")
    assert run(["data", "check", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "b?c" in printed


def test_a_full_disk_keeps_the_old_image_and_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for name, command in (("b.png", ["show", "--batch-size", "4", "--out"]), ("c.html", ["check", "--page"])):
        target = tmp_path / name
        target.write_bytes(b"old")
        with full_disk(2000, monkeypatch):
            assert run(["data", command[0], str(folder), *command[1:], str(target)]) == 1
        assert "File too large" in capsys.readouterr().err
        assert target.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.png", "c.html", "data"]


@pytest.mark.parametrize("closed", quick_first(["both", "stdout", "stderr"]))
def test_closed_streams_are_no_error(closed: str, folder: Path) -> None:
    ends = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-"}[closed]
    command = f"{sys.executable} -m vitrail data check '{folder}' {ends}"
    assert subprocess.run(["sh", "-c", command], capture_output=True, check=False).returncode == 0


def test_without_a_home_there_is_no_cache_and_no_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("VITRAIL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert run(["data", "check", str(folder)]) == 0
    assert run(["data", "download", "cifar10"]) == 2
    assert "set VITRAIL_CACHE to a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check", "nowhere"], "there is no 'nowhere'"),
        (["show", "fashion", "--augment", "strng2"], "did you mean 'strong2'"),
        (["show", "fashion", "--set", "mxup=1"], "no field is named 'mxup'; did you mean 'mixup'"),
        (["show", "fashion", "--split", "all"], "--split must be train, validation or test, got 'all'"),
        (["show", "fashion", "--image-size", "x"], "--image-size must be a number or HEIGHTxWIDTH"),
        (["show", "fashion", "--batch-size", "0"], "--batch-size must be from 1 to 1000"),
        (["show", "fashion", "--split", "test", "--step", "1000"], "step must be from 0 to 83, got 1000"),
        (["show", "fashion", "--out", "x.xyz"], "x.xyz"),
        (["show", "fashion", "--batch-size", "300000"], "--batch-size must be from 1 to 1000"),
        (["show", "fashion", "--step", "10000000000000000000"], "step must be from 0 to"),
        (["show", "fashion", "--out", "missing/x.png"], "--out must be a file in a folder that exists"),
        (["check", "fashion", "--page", "x.txt"], "--page must end in .html"),
        (["pack", "fashion", "missing/out.pack"], "OUT must be a file in a folder that exists"),
        (["pack", "fashion", "out.pack", "--size", "0"], "size"),
        (["pack", "fashion", "out.pack", "--store", "png"], "store must be 'pixels' or 'jpeg'"),
        (["download", "cifar11"], "did you mean 'cifar1"),
        (
            ["download", "fashion"],
            "fashion comes with Vitrail and needs no download; the datasets to download are fashion-mnist",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["data", *arguments]) == 2
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_download_without_a_name_lists_the_datasets_that_the_suites_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    assert run(["data", "download", "--json"]) == 0
    datasets = json.loads(capsys.readouterr().out)["datasets"]
    assert [(row["name"], row["available"]) for row in datasets] == [
        ("fashion-mnist", False),
        ("cifar10", False),
        ("cifar100", False),
    ]
    assert run(["data", "download"]) == 0
    printed = capsys.readouterr().out
    for row in datasets:
        assert all(str(row[field]) in printed for field in ("name", "summary", "licence", "url"))
        assert row["bytes"] > 10**7
    suites = [*ROOT.glob("examples/*.toml"), *ROOT.glob("docs/**/*.toml")]
    for source in {entry.source.partition(":")[0] for suite in suites for entry in load_suite(suite)}:
        assert source in printed


@pytest.mark.thorough
@pytest.mark.parity
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_bench_data_has_its_keys(capsys: Capture, folder: Path) -> None:
    assert run(["bench", "data", "--count", "32", "--rounds", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {"files_ratio", "pack_ratio", "small_ratio", "peers"} <= set(answer)
    assert all(answer[key] > 0 for key in ("files_ratio", "pack_ratio", "small_ratio"))
    assert set(answer["peers"]["torchvision"]) == {"files", "small", "small_random_resized"}
    assert answer["num_images"] == 32
    assert run(["bench", "data", "--data", str(folder / "train"), "--count", "32", "--rounds", "1"]) == 0
    assert "small_random_resized" in capsys.readouterr().out
    assert run(["bench", "data", "--data", str(folder / "nowhere")]) == 2
