"""``vitrail search``: an image finds itself first, then similar ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.cli.probe_data import save_models_and_dataset
from tests.data import images as sample_images
from vitrail.cli.main import run
from vitrail.inference.features import embed

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    save_models_and_dataset(tmp_path)


def search_hits(capsys: Capture, *arguments: str) -> list[dict[str, Any]]:
    assert run(["search", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["hits"]
    return found


@pytest.mark.parametrize("batch", ["3", "64"])
def test_the_order_is_that_of_all_cosines(batch: str, capsys: Capture) -> None:
    query = "set/val/bee/2.jpg"
    found = search_hits(capsys, "model", "set", query, "--top", "8", "--batch-size", batch)
    rows = []
    features = embed("model", [query]).values[0]
    for split, source in vitrail.open_dataset("set").splits.items():
        for index, row in enumerate(embed("model", source).values):
            cosine = float(row @ features / np.linalg.norm(row) / np.linalg.norm(features))
            rows.append((-cosine, source.describe(index), split))
    rows.sort()
    assert [(hit["file"], hit["split"]) for hit in found] == [(file, split) for _, file, split in rows[:8]]
    assert [hit["similarity"] for hit in found] == pytest.approx([-cosine for cosine, *_ in rows[:8]], abs=1e-5)
    assert (found[0]["file"], found[0]["label"]) == (query, "bee")
    assert found[0]["similarity"] == pytest.approx(1, abs=1e-5)


def test_a_table_and_a_contact_sheet(capsys: Capture) -> None:
    assert (
        run(["search", "bare", "set", "set/test/cat/1.jpg", "--split", "test", "--contact-sheet", "similar.png", "--top", "4"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "set/test/cat/1.jpg" in printed
    assert "contact sheet: similar.png" in printed
    with Image.open("similar.png") as sheet:
        assert sheet.size[0] > sheet.size[1] > 128  # five images: three and two


def test_there_are_at_most_as_many_hits_as_images(tmp_path: Path, capsys: Capture) -> None:
    for number in range(5):
        sample_images.write_image(tmp_path / "loose" / f"{number}.png", number)
    found = search_hits(capsys, "model", "loose", "loose/3.png", "--top", "50")
    assert len(found) == 5
    assert found[0]["file"].endswith("loose/3.png")
    assert found[0]["label"] is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["model", "set", "gone.jpg"], "the image gone.jpg cannot be read: No such file or directory; try another one"),
        (["model", "set", "empty.jpg"], "the image empty.jpg cannot be decoded: it is empty"),
        (["model", "set", "set"], "the image set cannot be read"),
        (["model", "nowhere", "q.png"], "there is no 'nowhere'"),
        (["model", "set", "q.png", "--contact-sheet", "a.gif"], "--contact-sheet must end in .png or .jpg"),
        (["model", "set", "q.png", "--contact-sheet", "q.png"], "--contact-sheet must not be the query itself"),
        (["model", "set", "q.png", "--contact-sheet", "a.png", "--top", "2000"], "--top must be at most 1000 to be drawn"),
        (["model", "set", "q.png", "--top", "0"], "--top"),
        (["model", "set", "q.png", "--split", "all"], "--split must be"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], sentence: str, tmp_path: Path, capsys: Capture) -> None:
    sample_images.write_image(tmp_path / "q.png", 9)
    (tmp_path / "empty.jpg").touch()
    assert run(["search", *arguments]) == 2
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
