"""An exported file with the interface of a model, so that it can be used for prediction and evaluation.

It only predicts: explanations and features need the run it was exported from.
b images, c channels, k classes.
"""

from pathlib import Path
from typing import Any, NoReturn

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.data.preprocess import Preprocess
from vitrail.data.transforms import scale_and_shift
from vitrail.errors import VitrailError
from vitrail.inference.onnx_predictor import OnnxPredictor
from vitrail.inference.predictor import load_predictor, speedup_fixed_message
from vitrail.inference.program_predictor import ProgramPredictor
from vitrail.models.build import Model
from vitrail.models.config import ViTConfig
from vitrail.models.resnet import ResNet
from vitrail.models.speedup_config import Speedups
from vitrail.models.speedups import speed_up
from vitrail.models.vit import ViT
from vitrail.weights.load import load

EXPORTED_SUFFIXES = (".onnx", ".pt2")


def load_any_model(source: str | Path, speedups: Speedups | None = None) -> Model:
    """Load an exported file as a model, or anything else that ``vitrail.load`` reads, with these speedups."""
    if Path(source).suffix.lower() in EXPORTED_SUFFIXES:
        predictor = load_predictor(source, speedups=speedups)
        assert isinstance(predictor, OnnxPredictor | ProgramPredictor)
        return ExportedViT(predictor) if isinstance(predictor.metadata.config, ViTConfig) else ExportedResNet(predictor)
    if speedups is None:
        return load(source)
    return speed_up(load(source, image=speedups.image), speedups)


class _ExportedModel(nn.Module):
    def __init__(self, predictor: OnnxPredictor | ProgramPredictor) -> None:
        nn.Module.__init__(self)  # without the layers of the parent class
        self.config: Any = predictor.metadata.config
        self.preprocess: Preprocess | None = predictor.preprocess
        self.class_names, self.metadata = predictor.metadata.class_names, predictor.metadata.training
        self.load_report: Any = None
        self.predictor = predictor
        self.device_anchor = nn.Parameter(torch.empty(0), requires_grad=False)  # callers move images to its device
        self.eval()

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
        """Undo the normalisation exactly, since callers have normalised the images and the file does so itself."""
        scale, shift = scale_and_shift(self.predictor.preprocess)
        pixels = (images.float().cpu() + shift) / scale
        rounded = pixels.round()
        if not bool(((pixels - rounded).abs() < 0.05).all() and (rounded >= 0).all() and (rounded <= 255).all()):
            raise VitrailError(
                f"{self.predictor.source} needs images whose pixels are whole numbers from 0 to 255; use the run itself"
            )
        uint8_images = rearrange(rounded.to(torch.uint8), "b c h w -> b h w c").contiguous().numpy()
        return torch.from_numpy(self.predictor.logits(uint8_images))

    def features(self, images: Float[Tensor, "b c height width"]) -> NoReturn:
        self._raise_unsupported()

    def encode(self, *arguments: Any) -> NoReturn:
        self._raise_unsupported()

    def embed_patches(self, images: Float[Tensor, "b c height width"]) -> NoReturn:
        self._raise_unsupported()

    def state_dict(self, *arguments: Any, **options: Any) -> NoReturn:
        self._raise_unsupported()

    def __copy__(self) -> NoReturn:
        """Refuse speedups, which begin with a copy around the same weights."""
        raise VitrailError(speedup_fixed_message(self.predictor.source))

    def _raise_unsupported(self) -> NoReturn:
        raise VitrailError(
            f"{self.predictor.source} is an exported file, which can only predict; use the run it was exported from"
        )


class ExportedViT(_ExportedModel, ViT):
    """A file exported from a Vision Transformer."""


class ExportedResNet(_ExportedModel, ResNet):
    """A file exported from a ResNet."""
