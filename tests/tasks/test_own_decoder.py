"""A task outside of the package whose model is an encoder and a decoder: one number per patch, from training to export.

The decoder is part of the model wherever it is saved, loaded, evaluated and exported.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import vitrail
from tests.training.test_loop import RaisesAt, same
from vitrail.data.loader import Batch
from vitrail.data.sources.dataset import Dataset
from vitrail.errors import VitrailError
from vitrail.inference.predictor import TorchPredictor
from vitrail.models.build import Model, decoder_state
from vitrail.training.trained_run import TrainedRun


@dataclass(frozen=True)
class PatchMeans(vitrail.TaskConfig):
    """Settings of the task."""

    kind: Literal["test-patch-means"] = "test-patch-means"
    labelled: ClassVar[bool] = False
    has_targets: ClassVar[bool] = False  # they are made from the image
    mixes: ClassVar[bool] = False

    def num_outputs(self, class_names: Sequence[str]) -> int:
        return 0  # the encoder has no head


@dataclass(frozen=True)
class Means(vitrail.Prediction):
    """The mean of every patch."""

    means: tuple[float, ...] = ()


class PatchModel(nn.Module):
    """One linear layer on the tokens of the patches."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.readout = nn.Linear(encoder.config.width, 1)

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b n"]:
        tokens = self.encoder.encode(self.encoder.embed_patches(images), self.encoder.grid(images))
        return self.readout(tokens[:, self.encoder.config.prefix_tokens :])[..., 0]


@dataclass(frozen=True)
class PatchMeansTask(vitrail.Task):
    """Predict the mean of every patch of the normalised image."""

    config_class: ClassVar = PatchMeans
    primary_metric: ClassVar[str] = "mse"
    lower_is_better: ClassVar[bool] = True
    prediction_class: ClassVar = Means

    def build_model(self, encoder: Model) -> nn.Module:
        return PatchModel(encoder)

    def targets(self, dataset: Dataset, indices: ndarray) -> Tensor:
        images = torch.from_numpy(np.stack([dataset.read(int(index)) for index in indices])).permute(0, 3, 1, 2)
        return F.avg_pool2d((images.float() / 255 - 0.5) / 0.5, 8).mean(1).flatten(1)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return F.mse_loss(model(batch.images).float(), batch.targets), {}

    def metrics(self, outputs: Tensor, targets: Any) -> dict[str, float]:
        return {"mse": F.mse_loss(outputs, targets).item()}

    def predictions(self, outputs: Tensor, top_k: int) -> list[Means]:
        return [Means(means=tuple(row)) for row in outputs.tolist()]


IMAGES = list(np.random.default_rng(0).integers(0, 256, (48, 2, 3, 3), np.uint8).repeat(8, 1).repeat(8, 2))
SHORT = {"steps": 12, "schedule.warmup_steps": 0, "eval_every": 4, "checkpoint_every": 4, "optim.lr": 1e-2}


def train(out: Path, **options: Any) -> TrainedRun:
    common: dict[str, Any] = {"model": "mu/8", "image_size": (16, 24), "augment": "none", "batch_size": 8, "workers": 0}
    settings = {**SHORT, "preprocess.crop_pct": 1.0, "augment.crop": "none", "augment.hflip": 0.0}
    return vitrail.train(IMAGES, task=PatchMeans(), settings=settings, out=out, **common, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return train(tmp_path_factory.mktemp("runs") / "run")


def test_the_decoder_is_saved_and_loaded_with_the_model(trained: TrainedRun, tmp_path: Path) -> None:
    model: Any = trained.model
    assert type(model) is PatchModel
    assert set(decoder_state(model)) == {"readout.weight", "readout.bias"}
    images = vitrail.preprocess(model.encoder, IMAGES[:3])
    vitrail.save(model, tmp_path / "copy", metadata=model.encoder.metadata)
    with torch.no_grad():
        assert_close(vitrail.load(tmp_path / "copy")(images), model(images), rtol=0, atol=0)
        last = vitrail.load_checkpoint(trained.folder, 12)
        assert_close(last(images), vitrail.load(trained.folder / "last")(images), rtol=0, atol=0)
    with pytest.raises(VitrailError, match="the decoder of a PatchModel"):
        vitrail.save(model, tmp_path / "x.npz", format="official")


def test_it_resumes_bit_for_bit(trained: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        train(tmp_path / "run", callbacks=[RaisesAt(7, RuntimeError("stop"))])
    assert same(train(tmp_path / "run").folder, trained.folder)


def test_its_predictions_and_metrics_are_those_of_the_whole_model(trained: TrainedRun) -> None:
    model: Any = trained.model
    with torch.no_grad():
        expected = model(vitrail.preprocess(model.encoder, IMAGES[:4]))
    for source in (trained, trained.folder, model):
        assert_close(torch.tensor([row.means for row in vitrail.predict(source, IMAGES[:4])]), expected)
    assert vitrail.evaluate(trained.folder, IMAGES, "test").metrics["mse"] == pytest.approx(trained.metrics["mse"])
    features = vitrail.embed(model, IMAGES[:4]).values
    with torch.no_grad():
        assert_close(features, model.encoder.features(vitrail.preprocess(model.encoder, IMAGES[:4])).numpy())
    before, readout = TorchPredictor(model).hash(), model.readout.bias.data
    readout += 1
    assert TorchPredictor(model).hash() != before
    readout -= 1


@pytest.mark.compile
@pytest.mark.parametrize("to", ["onnx", "int8", "program"])
def test_an_exported_file_has_the_decoder(to: Any, trained: TrainedRun, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / ("x.pt2" if to == "program" else "x.onnx")
    vitrail.export(trained.folder, path, to, images=8, calibration=8, max_drop=0.1)
    expected, found = (vitrail.predict(each, IMAGES[:5]) for each in (trained.folder, path))
    assert_close(
        torch.tensor([row.means for row in found]),
        torch.tensor([row.means for row in expected]),
        rtol=0,
        atol=0.1 if to == "int8" else 1e-4,
    )
