"""An exported file is kept only if its predictions match the model's; it appears whole or not at all."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.export.small import noise, ready
from vitrail.data.sources.open import pictures
from vitrail.errors import VitrailError
from vitrail.export.check import Checked, refuse
from vitrail.export.engine import TorchEngine, open_engine
from vitrail.export.onnx import write_onnx
from vitrail.export.ship import Shipped, kept, ship
from vitrail.export.ship import ready as made_ready
from vitrail.export.trial import Trial, trial
from vitrail.models.build import build
from vitrail.models.vit import ViT
from vitrail.weights.checkpoint import save

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def model() -> ViT:
    return ready()


@pytest.fixture(scope="module")
def file(model: ViT, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Export the model correctly and return the file's content."""
    path = tmp_path_factory.mktemp("ship") / "good.onnx"
    found = ship(model, path).checked
    assert found.relative < 1e-5
    assert found.agreement == 1
    assert (found.pictures, found.real) == (32, False)
    assert "does not record its dataset" in found.what
    return path.read_bytes()


def tried(model: ViT) -> Trial:
    pictures = noise(9)
    return Trial(pictures, TorchEngine(model).logits(pictures).argmax(1), "noise")


def tolerated(found: Checked) -> None:
    refuse(found, "x.onnx", 1e-3)


def kept_as(content: bytes, model: ViT, folder: Path) -> Shipped:
    """Run the verification on a file with this content."""

    def write(half: Path) -> None:
        half.write_bytes(content)

    return kept(model, folder / "x.onnx", "onnx", write, tried(model), tolerated)


def altered(content: bytes, by: float) -> bytes:
    """Change one value in the middle of one weight."""
    proto = onnx.load_from_string(content)
    tensor = max(proto.graph.initializer, key=lambda each: len(each.raw_data))
    values = np.frombuffer(tensor.raw_data, np.float32).copy()
    values[len(values) // 2] += by
    tensor.raw_data = values.tobytes()
    return bytes(proto.SerializeToString())


@pytest.mark.compile
def test_a_good_file_is_kept_and_its_accuracy_reported(model: ViT, file: bytes, tmp_path: Path) -> None:
    shipped = kept_as(file, model, tmp_path)
    assert (shipped.checked.torch_top1, shipped.checked.file_top1) == (1.0, 1.0)
    assert shipped.bytes == len(file)
    assert [each.name for each in tmp_path.iterdir()] == ["x.onnx"]


@pytest.mark.compile
def test_a_file_with_a_wrong_weight_is_removed_and_the_older_one_kept(model: ViT, file: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"older")
    with pytest.raises(VitrailError, match=r"logits of x\.onnx differ .* so it was removed"):
        kept_as(altered(file, 3.0), model, tmp_path)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("x.onnx", b"older")]


@pytest.mark.compile
def test_logits_that_are_not_finite_exceed_any_tolerance(model: ViT, file: bytes, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"by nan of the largest logit .* so it was removed"):
        kept_as(altered(file, float("nan")), model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.compile
@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_removed(model: ViT, file: bytes, tmp_path: Path, fraction: float) -> None:
    with pytest.raises(VitrailError, match=r"not an ONNX file|has no Vitrail metadata"):
        kept_as(file[: int(fraction * len(file))], model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.compile
def test_the_file_may_be_deleted_once_it_is_loaded(model: ViT, file: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(file)
    engine = open_engine(tmp_path / "x.onnx", threads=1)
    before = engine.logits(noise(3))
    (tmp_path / "x.onnx").write_bytes(b"")
    (tmp_path / "x.onnx").unlink()
    assert (engine.logits(noise(3)) == before).all()


def test_the_weights_may_be_deleted_once_torch_has_loaded_them(tmp_path: Path) -> None:
    save(ready(), tmp_path / "model")
    engine = open_engine(tmp_path / "model")
    before = engine.logits(noise(3))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    assert (engine.logits(noise(3)) == before).all()


@pytest.mark.compile
def test_a_full_disk_is_a_clear_error_and_leaves_no_file(tmp_path: Path) -> None:
    """The operating system refuses to write more than 20 kB."""
    save(ready(), tmp_path / "model")
    (tmp_path / "out").mkdir()
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "from vitrail.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "export", tmp_path / "model", "--out", tmp_path / "out" / "x.onnx"],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "x.onnx cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_the_models_own_dataset_is_used_if_available() -> None:
    model = ready(channels=1, classes=10, image=(12, 15))
    model.facts = {"dataset": {"name": "fashion"}}
    found = trial(model, count=24)
    assert (found.what, found.real, found.pictures.shape) == ("test of fashion", True, (24, 12, 15, 1))
    model.facts = {"dataset": {"name": "/nowhere/at/all"}}
    found = trial(model)
    assert "its own dataset is not available" in found.what
    assert not found.real
    assert (found.labels == -1).all()


def test_given_images_must_exist() -> None:
    with pytest.raises(VitrailError, match="there is no '/nowhere'"):
        trial(ready(), "/nowhere")


def test_labels_are_the_models_class_indices() -> None:
    model = ready(channels=1, classes=10)
    names = pictures("fashion").names
    model.labels = names
    forward = trial(model, "fashion", 50).labels
    model.labels = names[::-1]
    assert (trial(model, "fashion", 50).labels == 9 - forward).all()
    model.labels = None  # class names are unknown, so images are compared without labels
    assert (trial(model, "fashion", 50).labels == -1).all()


def test_calibration_images_are_not_used_for_evaluation(tmp_path: Path) -> None:
    """A single split is divided, labelled or not; a comparison alone uses all images."""
    for number in range(10):
        for folder in ("loose", "classes/elm"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (15, 12), (25 * number, 9, 9)).save(tmp_path / folder / f"{number}.png")
    model = ready(classes=5)
    for name, label in (("loose", -1), ("classes", 4)):
        data = str(tmp_path / name)
        model.facts = {"recipe": {"validation": 0.0, "test": 0.0}}
        whole, judged, kept = (trial(model, data, role=role) for role in (None, "evaluate", "calibrate"))
        reds = [set(found.pictures[:, 0, 0, 0].tolist()) for found in (whole, judged, kept)]
        assert (len(reds[0]), len(reds[1]), len(reds[2])) == (10, 7, 3)
        assert not reds[1] & reds[2]
        assert [found.what for found in (whole, judged, kept)] == [
            f"{fraction} of {data}" for fraction in ("all", "three quarters", "a quarter")
        ]
        assert set(whole.labels.tolist()) == {label}
    fashion = ready(channels=1, classes=10)
    assert [trial(fashion, "fashion", 9, role=role).what for role in (None, "evaluate", "calibrate")] == [
        "test of fashion", "test of fashion", "train of fashion",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("out", "to", "message"),
    [
        ("x.pt2", "onnx", r"--to onnx writes a \.onnx file, got .*; try x\.onnx"),
        ("nowhere/x.onnx", "onnx", "a file in a folder that exists"),
        ("x.onnx", "program", r"try x\.pt2"),
        ("x.onnx", "coreml", "to must be 'onnx', 'int8' or 'program', got 'coreml'"),
    ],
)
def test_invalid_arguments_are_refused_before_any_work(tmp_path: Path, out: str, to: str, message: str) -> None:
    with pytest.raises(VitrailError, match=message):
        ship(ready(), tmp_path / out, to)  # type: ignore[arg-type]
    for tolerance in (0, float("nan"), float("inf")):
        with pytest.raises(VitrailError, match="tolerance must be a number above 0"):
            ship(ready(), tmp_path / "x.onnx", tolerance=tolerance)
    with pytest.raises(VitrailError, match="may be lost must be from 0 to below 1, got nan"):
        ship(ready(), tmp_path / "x.onnx", max_drop=float("nan"))


def test_a_read_only_folder_is_reported_before_and_after_writing(
    model: ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only disk nothing can be removed either, which must not hide the original error."""

    def refused(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", refused)
    seen = Trial(noise(3), np.full(3, -1), "noise", False)
    with pytest.raises(VitrailError, match=r"x\.onnx cannot be written: Read-only file system; try another path"):
        kept(model, tmp_path / "x.onnx", "onnx", refused, seen, lambda found: None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(VitrailError, match=r"x\.onnx cannot be written: .* is read-only; try another path"):
        ship(model, tmp_path / "x.onnx")


def test_a_model_in_training_is_not_changed_and_one_without_weights_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="on the meta device"):
        made_ready(build("Ti/16", device="meta"))
    model = ready().train().half()
    made = made_ready(model)
    assert not made.training
    assert model.training
    assert next(model.parameters()).element_size() == 2


def test_a_model_without_preprocessing_is_not_exported(tmp_path: Path) -> None:
    model = ready()
    model.preprocess = None
    with pytest.raises(VitrailError, match="has no preprocessing config"):
        write_onnx(model, tmp_path / "x.onnx")
