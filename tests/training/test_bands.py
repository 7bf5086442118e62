"""Images of several bands, from a folder to a trained, resumed, fine-tuned, exported and served model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import vitrail
from tests.data.band_images import make_bands, npy_bytes, tiff_bytes, write_band_folders
from tests.data.images import write_class_folders
from tests.small_models import small_vit
from tests.tiers import quick_first
from tests.training.test_loop import RaisesAt, same
from vitrail.cli.main import run
from vitrail.data.decode import decode_bands
from vitrail.data.preprocess import Preprocess, vit_preprocess
from vitrail.errors import VitrailError
from vitrail.exporters.export import export
from vitrail.inference.load import load_predictor
from vitrail.runs import run_prepared
from vitrail.serve.app import create_serve_app
from vitrail.serve.config import ServeConfig
from vitrail.training.prepare import (
    COLOUR_NOTE,
    PreparedRun,
    RecipeOptions,
    prepare_finetuning,
    prepare_pretraining,
    prepare_training,
)
from vitrail.training.trained_run import TrainedRun
from vitrail.training.trainer import Hardware

SMALL = (
    "model.width=24", "model.depth=2", "model.heads=3", "model.mlp=40", "model.patch=4,4", "batch_size=8", "augment.mixup=0.1",
    "augment.crop_scale=0.5,1", "ema_decay=none", "optim.muon_lr=0.03",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 5 bands of uint16 whose classes differ in the last band only."""
    return write_band_folders(tmp_path_factory.mktemp("bands") / "images", 30)


@pytest.fixture(scope="module")
def trained(folder: Path) -> TrainedRun:
    return learn(folder, folder.parent / "run")


def prepare(folder: Path, *overrides: str) -> PreparedRun:
    return prepare_training(str(folder), image=(12, 12), options=RecipeOptions((*SMALL, "steps=30", *overrides)))


def learn(folder: Path, out: Path, *overrides: str) -> TrainedRun:
    return run_prepared(prepare(folder, *overrides).with_out(out), hardware=Hardware(workers=0))


def test_what_only_the_fifth_band_shows_is_learned_from_all_bands_and_from_no_three(
    trained: TrainedRun, folder: Path, tmp_path: Path
) -> None:
    assert trained.result["test"]["top1"] == 1
    for name in ("dry", "wet"):
        (tmp_path / "rgb" / name).mkdir(parents=True)
        for path in (folder / name).iterdir():
            np.save(tmp_path / "rgb" / name / f"{path.stem}.npy", decode_bands(path)[..., :3])
    three = learn(tmp_path / "rgb", tmp_path / "run")
    everything = vitrail.evaluate(three.folder, str(tmp_path / "rgb"), split="train")
    assert everything.metrics["top1"] < 0.8
    assert vitrail.evaluate(trained.folder, str(folder), split="train").metrics["top1"] == 1


def test_the_recipe_follows_from_the_data_and_says_so(folder: Path) -> None:
    prepared = prepare_training(str(folder), image=(12, 12), options=RecipeOptions(("augment.randaug_layers=2",)))
    preprocess, train = prepared.recipe.preprocess, prepared.data.train
    assert prepared.recipe.model.channels == 5
    assert preprocess.raw
    values = np.concatenate([decode_bands(train.read(index)).reshape(-1, 5) for index in range(len(train))])
    assert preprocess.mean == pytest.approx(values.mean(0), rel=1e-5)
    assert preprocess.std == pytest.approx(values.std(0), rel=1e-5)
    assert prepared.notes[:2] == (
        "images of 5 bands of uint16: model.channels=5, and mean and standard deviation of each band are measured on 48 "
        "training images (preprocess.mean, preprocess.std)",
        COLOUR_NOTE,
    )
    with pytest.raises(VitrailError, match=r"augment.hue is defined for 8-bit images, and these are bands; try augment.hue=0"):
        prepare(folder, "augment.hue=0.1")
    fixed = prepare(folder, "preprocess.mean=1,2,3,4,5").recipe
    assert fixed.preprocess.mean == (1, 2, 3, 4, 5)
    assert fixed.preprocess.std == preprocess.std


def test_an_interrupted_run_resumes_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    changes = "augment.randaug_layers=1", "augment.erase_prob=0.5", "steps=9", "checkpoint_every=3", "eval_every=3"
    whole = learn(folder, tmp_path / "whole", *changes)
    with pytest.raises(OSError, match="broke"):
        run_prepared(
            prepare(folder, *changes).with_out(tmp_path / "cut"),
            hardware=Hardware(workers=0),
            callbacks=[RaisesAt(5, OSError("broke"))],
        )
    resumed = learn(folder, tmp_path / "cut", *changes)  # measured again, and equal
    assert same(resumed.folder, whole.folder)
    assert resumed.result["test"] == whole.result["test"]


def test_rgb_weights_are_adapted_to_the_bands(folder: Path, tmp_path: Path) -> None:
    model = small_vit(image=(12, 12), patch=(4, 4))
    model.preprocess = vit_preprocess((12, 12))
    vitrail.save(model, tmp_path / "rgb")
    prepared, _ = prepare_finetuning(str(tmp_path / "rgb"), str(folder), options=RecipeOptions(("steps=2", "batch_size=8")))
    tuned = run_prepared(prepared.with_out(tmp_path / "run"), hardware=Hardware(workers=0))
    loaded = vitrail.load(tuned.folder)
    assert loaded.config.channels == 5
    assert loaded.preprocess is not None
    assert loaded.preprocess.raw
    expected = vitrail.load(tmp_path / "rgb", channels=5).state_dict()["embed.project.weight"]
    assert torch.allclose(loaded.state_dict()["embed.project.weight"], expected, atol=0.05)
    again, _ = prepare_finetuning(str(tuned.folder), str(folder), options=RecipeOptions(("steps=2", "batch_size=8")))
    assert again.recipe.preprocess == loaded.preprocess
    assert again.notes[0].startswith("images of 5 bands of uint16, normalised by the mean and standard deviation that")


def test_weights_for_bands_refuse_eight_bit_images(trained: TrainedRun, tmp_path: Path) -> None:
    photos = write_class_folders(tmp_path / "photos", {"ant": 6, "bee": 6})
    with pytest.raises(VitrailError, match=r"the weights take 5 bands, and .*photos has 8-bit images; name a dataset of such"):
        prepare_finetuning(str(trained.folder), str(photos))


def test_a_model_of_bands_predicts_evaluates_and_embeds(trained: TrainedRun, folder: Path) -> None:
    files = [str(folder / "wet" / "3.tif"), str(folder / "dry" / "2.tif")]
    arrays = [decode_bands(Path(file)) for file in files]
    assert [prediction.label for prediction in vitrail.predict(trained.folder, files)] == ["wet", "dry"]
    outputs = load_predictor(trained.folder).outputs
    inputs = vitrail.preprocess(trained.folder, arrays)
    model = vitrail.load(trained.folder)
    assert model.preprocess is not None
    shift, scale = (torch.tensor(values)[:, None, None] for values in (model.preprocess.mean, model.preprocess.std))
    raw = (inputs * scale + shift).permute(0, 2, 3, 1).numpy()
    with torch.no_grad():
        assert np.allclose(outputs(raw), model(inputs), atol=1e-4)
    (wrong,) = vitrail.predict(trained.folder, [make_bands(0, bands=4)])
    assert wrong.error == "has 4 bands of uint16, and 5 bands are needed; try a file of those that the model was trained on"
    assert vitrail.embed(trained.folder, arrays).values.shape == (2, 24)


@pytest.mark.parametrize("to", quick_first(["onnx", "int8", "program"]))
def test_an_exported_model_takes_bands_in_floats(to: Any, trained: TrainedRun, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / ("model.pt2" if to == "program" else "model.onnx")
    result = export(trained.folder, out, to, images=8, max_drop=0.2)
    assert result.parity.agreement == 1
    predictor, original = load_predictor(out), load_predictor(trained.folder)
    assert predictor.preprocess == original.preprocess
    pixels = np.random.default_rng(0).normal(300, 100, (3, 12, 12, 5)).astype(np.float32)
    if to != "int8":
        assert np.allclose(predictor.outputs(pixels), original.outputs(pixels), atol=1e-4)
    with pytest.raises(VitrailError, match=r"images must be float32 \(b, height, width, c\), got uint8"):
        predictor.outputs(pixels.astype(np.uint8))
    files = [str(folder / name / "1.tif") for name in ("dry", "wet")]
    assert [prediction.label for prediction in vitrail.predict(out, files)] == ["dry", "wet"]


def test_without_its_dataset_a_model_of_bands_is_compared_on_noise(tmp_path: Path) -> None:
    model = small_vit(channels=4, depth=1)
    model.preprocess = Preprocess((12, 15), mean=(1.0, 20.0, 300.0, -4.0), std=(0.1, 3.0, 50.0, 0.6), raw=True)
    result = export(model, tmp_path / "model.onnx")
    assert result.parity.num_images == 32
    assert result.parity.image_source.startswith("noise, as the model does not record its dataset")


def test_the_server_takes_tiff_and_npy(trained: TrainedRun, folder: Path) -> None:
    predictor = load_predictor(trained.folder)
    with TestClient(create_serve_app(lambda: predictor, ServeConfig(), "bands")) as client:
        while client.get("/readyz").status_code != 200:
            pass
        for content in ((folder / "wet" / "0.tif").read_bytes(), npy_bytes(decode_bands(folder / "wet" / "0.tif"))):
            answer = client.post("/predict", content=content, headers={"Content-Type": "application/octet-stream"})
            assert answer.json()["predictions"][0]["label"] == "wet"
        drawn = client.post("/explain", content=content, headers={"Content-Type": "image/tiff", "Accept": "image/png"})
        assert drawn.headers["content-type"] == "image/png"
        refused = client.post("/predict", content=tiff_bytes(make_bands(0, bands=3)), headers={"Content-Type": "image/tiff"})
        assert refused.status_code == 422
        assert "has 3 bands of uint16, and 5 bands are needed" in refused.json()["error"]


def test_what_is_defined_for_eight_bit_images_only_is_refused(
    trained: TrainedRun, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["robustness", str(trained.folder), str(folder)]) == 2
    assert "robustness needs a model of 8-bit images, for which the corruptions are defined" in capsys.readouterr().err
    assert run(["studio", str(trained.folder), "--port", "0"]) == 2
    assert "the studio draws 8-bit images, and run takes 5 bands; try vitrail explain" in capsys.readouterr().err


def test_commands_read_a_folder_of_bands(trained: TrainedRun, folder: Path, tmp_path: Path) -> None:
    model, data = str(trained.folder), str(folder)
    assert run(["explain", model, str(folder / "wet" / "0.tif"), "--method", "rollout", "--out", str(tmp_path / "page")]) == 0
    assert run(["probe", model, data]) == 0
    assert run(["data", "check", data, "--page", str(tmp_path / "check.html")]) == 0
    page = (trained.folder / "report.html").read_text()
    assert "Highest losses" in page


def test_masked_patches_of_bands_are_learned(folder: Path, tmp_path: Path) -> None:
    options = RecipeOptions((*SMALL[:6], "steps=2", "task.masking.decoder_depth=1", "task.masking.decoder_width=12"))
    prepared = prepare_pretraining(str(folder), image=(12, 12), options=options)
    trained = run_prepared(prepared.with_out(tmp_path / "run"), hardware=Hardware(workers=0))
    assert vitrail.load(trained.folder).config.channels == 5
    assert (trained.folder / "report.html").is_file()


def test_eight_bit_channels_beyond_rgb_need_their_mean(tmp_path: Path) -> None:
    model = small_vit(channels=4)
    model.preprocess = vit_preprocess((12, 15), 4)
    with pytest.raises(VitrailError, match="takes 4 bands, and its preprocessing is for 8-bit images, which have 1 or 3; set"):
        load_predictor(model)
