"""``--mean``, ``--std``, ``--interpolation``, ``--crop`` and ``--fit``: preprocessing of weights that do not record it."""

from pathlib import Path

import pytest

from tests.cli.commands import options
from tests.small_models import small_vit
from vitrail.cli.main import LOADS_WEIGHTS, run
from vitrail.weights.load import load
from vitrail.weights.save import save


@pytest.mark.parametrize("command", [*(command.__name__ for command in LOADS_WEIGHTS), "weights convert"])
def test_every_command_that_loads_weights_has_them(command: str) -> None:
    assert {"--mean", "--std", "--interpolation", "--crop", "--fit"} <= set(options(command))


def test_they_decide_what_a_bare_file_does_not_record(tmp_path: Path) -> None:
    save(small_vit(gelu="exact", image=(12, 10)), tmp_path / "bare.pth", format="timm")
    words = ["--mean", "0.1,0.2,0.3", "--std", "0.25", "--interpolation", "lanczos", "--crop", "0.75"]
    assert run(["weights", "convert", str(tmp_path / "bare.pth"), str(tmp_path / "a"), "--heads", "3", *words]) == 0
    preprocess = load(tmp_path / "a").preprocess
    assert preprocess is not None
    assert (preprocess.mean, preprocess.std) == ((0.1, 0.2, 0.3), (0.25,) * 3)
    assert (preprocess.interpolation, preprocess.crop_pct, preprocess.fit) == ("lanczos", 0.75, "crop")
    assert run(["weights", "convert", str(tmp_path / "bare.pth"), str(tmp_path / "b"), "--heads", "3", "--fit", "pad"]) == 0
    padded = load(tmp_path / "b").preprocess
    assert padded is not None
    assert (padded.fit, padded.crop_pct) == ("pad", 1.0)  # the assumed fraction to crop would cut the image off


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mean", "grey"], "--mean must be numbers, got 'grey'"),
        (["--mean", "0.1,0.2"], "mean must have one value or 3"),
        (["--interpolation", "magic"], "--interpolation must be"),
        (["--crop", "0"], "crop_pct must be above 0"),
        (["--crop", "0.9", "--fit", "pad"], "crop_pct must be 1 and trim 0 with fit=pad"),
        (["--fit", "letterbox"], "--fit must be 'crop', 'pad' or 'stretch'"),
        (["--std", "-1"], "std must be above 0"),
    ],
    ids=str,
)
def test_nonsense_is_refused(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(small_vit(gelu="exact", image=(12, 10)), tmp_path / "bare.pth", format="timm")
    assert run(["weights", "convert", str(tmp_path / "bare.pth"), str(tmp_path / "a"), "--heads", "3", *words]) == 2
    assert message in capsys.readouterr().err


def test_recorded_preprocessing_is_not_overridden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(small_vit(), tmp_path / "mine")
    assert run(["weights", "convert", str(tmp_path / "mine"), str(tmp_path / "a"), "--mean", "0.4"]) == 2
    assert "the model records its preprocessing; leave --mean" in capsys.readouterr().err
