"""An exported file is kept only if its predictions match the model's; it appears whole or not at all."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.disk_limit import limit_file_size
from tests.exporters.small import exportable_vit, random_images
from vitrail.data.sources.open import open_dataset
from vitrail.errors import VitrailError
from vitrail.exporters.export import ExportResult, export, to_cpu_float32, write_and_verify
from vitrail.exporters.onnx import write_onnx
from vitrail.exporters.parity import ParityReport, require_parity
from vitrail.exporters.sample_images import SampleImages, load_sample_images
from vitrail.inference.load import load_predictor
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import build
from vitrail.models.vit import ViT
from vitrail.weights.save import save

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def model() -> ViT:
    return exportable_vit()


@pytest.fixture(scope="module")
def file(model: ViT, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Export the model correctly and return the file's content."""
    path = tmp_path_factory.mktemp("export") / "good.onnx"
    report = export(model, path).parity
    assert report.relative_difference < 1e-5
    assert report.agreement == 1
    assert (report.num_images, report.real_images) == (32, False)
    assert "does not record its dataset" in report.image_source
    return path.read_bytes()


def noise_samples(model: ViT) -> SampleImages:
    images = random_images(9)
    return SampleImages(images, TorchPredictor(model).outputs(images).argmax(1), "noise")


def check_tolerance(report: ParityReport) -> None:
    require_parity(report, "x.onnx", 1e-3)


def write_and_verify_content(content: bytes, model: ViT, folder: Path) -> ExportResult:
    """Run the verification on a file with this content."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    return write_and_verify(model, folder / "x.onnx", "onnx", write, noise_samples(model), check_tolerance)


def with_changed_weight(content: bytes, by: float) -> bytes:
    """Change one value in the middle of one weight."""
    proto = onnx.load_from_string(content)
    tensor = max(proto.graph.initializer, key=lambda each: len(each.raw_data))
    values = np.frombuffer(tensor.raw_data, np.float32).copy()
    values[len(values) // 2] += by
    tensor.raw_data = values.tobytes()
    return bytes(proto.SerializeToString())


@pytest.mark.compile
def test_a_good_file_is_kept_and_its_accuracy_reported(model: ViT, file: bytes, tmp_path: Path) -> None:
    result = write_and_verify_content(file, model, tmp_path)
    assert (result.parity.torch_top1, result.parity.file_top1) == (1.0, 1.0)
    assert result.file_bytes == len(file)
    assert [each.name for each in tmp_path.iterdir()] == ["x.onnx"]


@pytest.mark.compile
def test_a_file_with_a_wrong_weight_is_removed_and_the_older_one_kept(model: ViT, file: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(b"older")
    with pytest.raises(VitrailError, match=r"logits of x\.onnx differ .* so it was removed"):
        write_and_verify_content(with_changed_weight(file, 3.0), model, tmp_path)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("x.onnx", b"older")]


@pytest.mark.compile
def test_logits_that_are_not_finite_exceed_any_tolerance(model: ViT, file: bytes, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"by nan of the largest logit .* so it was removed"):
        write_and_verify_content(with_changed_weight(file, float("nan")), model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.compile
@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_removed(model: ViT, file: bytes, tmp_path: Path, fraction: float) -> None:
    with pytest.raises(VitrailError, match=r"not an ONNX file|has no Vitrail metadata"):
        write_and_verify_content(file[: int(fraction * len(file))], model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.compile
def test_the_file_may_be_deleted_once_it_is_loaded(model: ViT, file: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.onnx").write_bytes(file)
    predictor = load_predictor(tmp_path / "x.onnx", threads=1)
    before = predictor.outputs(random_images(3))
    (tmp_path / "x.onnx").write_bytes(b"")
    (tmp_path / "x.onnx").unlink()
    assert (predictor.outputs(random_images(3)) == before).all()


def test_the_weights_may_be_deleted_once_torch_has_loaded_them(tmp_path: Path) -> None:
    save(exportable_vit(), tmp_path / "model")
    predictor = load_predictor(tmp_path / "model")
    before = predictor.outputs(random_images(3))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    assert (predictor.outputs(random_images(3)) == before).all()


@pytest.mark.compile
def test_a_full_disk_is_a_clear_error_and_leaves_no_file(model: ViT, file: bytes, tmp_path: Path) -> None:
    with limit_file_size(20_000), pytest.raises(VitrailError, match=r"x\.onnx cannot be written: File too large"):
        write_and_verify_content(file, model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.compile
@pytest.mark.thorough
def test_a_full_disk_is_a_clear_error_of_the_command(tmp_path: Path) -> None:
    """The operating system refuses to write more than 20 kB."""
    save(exportable_vit(), tmp_path / "model")
    (tmp_path / "out").mkdir()
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        "from vitrail.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "export", tmp_path / "model", "--out", tmp_path / "out" / "x.onnx"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert "x.onnx cannot be written: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "out").iterdir())


def test_the_models_own_dataset_is_used_if_available() -> None:
    model = exportable_vit(channels=1, classes=10, image=(12, 15))
    model.metadata = {"dataset": {"name": "fashion"}}
    samples = load_sample_images(model, count=24)
    assert (samples.description, samples.is_real, samples.images.shape) == ("test of fashion", True, (24, 12, 15, 1))
    model.metadata = {"dataset": {"name": "/nowhere/at/all"}}
    samples = load_sample_images(model)
    assert "its own dataset is not available" in samples.description
    assert not samples.is_real
    assert (samples.labels == -1).all()


def test_a_named_dataset_must_exist() -> None:
    with pytest.raises(VitrailError, match="there is no '/nowhere'"):
        load_sample_images(exportable_vit(), "/nowhere")


def test_labels_are_the_models_class_indices() -> None:
    model = exportable_vit(channels=1, classes=10)
    class_names = open_dataset("fashion").class_names
    model.class_names = class_names
    forward = load_sample_images(model, "fashion", 50).labels
    model.class_names = class_names[::-1]
    assert (load_sample_images(model, "fashion", 50).labels == 9 - forward).all()
    model.class_names = None  # class names are unknown, so images are compared without labels
    assert (load_sample_images(model, "fashion", 50).labels == -1).all()


def test_calibration_images_are_not_used_for_evaluation(tmp_path: Path) -> None:
    """A single split is divided, labelled or not; a comparison alone uses all images."""
    for number in range(10):
        for folder in ("loose", "classes/elm"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (15, 12), (25 * number, 9, 9)).save(tmp_path / folder / f"{number}.png")
    model = exportable_vit(classes=5)
    for name, label in (("loose", -1), ("classes", 4)):
        path = str(tmp_path / name)
        model.metadata = {"recipe": {"val_fraction": 0.0, "test_fraction": 0.0}}
        whole, evaluation, calibration = (
            load_sample_images(model, path, role=role) for role in (None, "evaluate", "calibrate")
        )
        reds = [set(samples.images[:, 0, 0, 0].tolist()) for samples in (whole, evaluation, calibration)]
        assert (len(reds[0]), len(reds[1]), len(reds[2])) == (10, 7, 3)
        assert not reds[1] & reds[2]
        assert [samples.description for samples in (whole, evaluation, calibration)] == [
            f"{fraction} of {path}" for fraction in ("all", "three quarters", "a quarter")
        ]
        assert set(whole.labels.tolist()) == {label}
    fashion = exportable_vit(channels=1, classes=10)
    assert [load_sample_images(fashion, "fashion", 9, role=role).description for role in (None, "evaluate", "calibrate")] == [
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
        export(exportable_vit(), tmp_path / out, to)  # type: ignore[arg-type]
    for tolerance in (0, float("nan"), float("inf")):
        with pytest.raises(VitrailError, match="tolerance must be a number above 0"):
            export(exportable_vit(), tmp_path / "x.onnx", tolerance=tolerance)
    with pytest.raises(VitrailError, match="may be lost must be from 0 to below 1, got nan"):
        export(exportable_vit(), tmp_path / "x.onnx", max_drop=float("nan"))


def test_a_read_only_folder_is_reported_before_and_after_writing(
    model: ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only disk nothing can be removed either, which must not hide the original error."""

    def raise_read_only(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "unlink", raise_read_only)
    samples = SampleImages(random_images(3), np.full(3, -1), "noise", False)
    with pytest.raises(VitrailError, match=r"x\.onnx cannot be written: Read-only file system; try another path"):
        write_and_verify(model, tmp_path / "x.onnx", "onnx", raise_read_only, samples, lambda report: None)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(VitrailError, match=r"x\.onnx cannot be written: .* is read-only; try another path"):
        export(model, tmp_path / "x.onnx")


def test_a_model_in_training_is_not_changed_and_one_without_weights_refused(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="on the meta device"):
        to_cpu_float32(build("Ti/16", device="meta"))
    model = exportable_vit().train().half()
    prepared = to_cpu_float32(model)
    assert not prepared.training
    assert model.training
    assert next(model.parameters()).element_size() == 2


def test_a_model_without_preprocessing_is_not_exported(tmp_path: Path) -> None:
    model = exportable_vit()
    model.preprocess = None
    with pytest.raises(VitrailError, match="has no preprocessing config"):
        write_onnx(model, tmp_path / "x.onnx")
