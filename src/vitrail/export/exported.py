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

from vitrail.data.prepare import constants
from vitrail.data.preprocess import Preprocess
from vitrail.errors import VitrailError
from vitrail.export.engine import as_exported, open_engine
from vitrail.export.program import ProgramEngine
from vitrail.export.session import OnnxEngine
from vitrail.models.build import Model
from vitrail.models.faster import Faster
from vitrail.models.faster import faster as quickened
from vitrail.models.resnet import ResNet
from vitrail.models.settings import ViTConfig
from vitrail.models.vit import ViT
from vitrail.weights.load import load

ENDINGS = (".onnx", ".pt2")


def open_model(source: str | Path, faster: Faster | None = None) -> Model:
    """Load an exported file as a model, or anything else that ``vitrail.load`` reads, with these speedups."""
    if Path(source).suffix.lower() in ENDINGS:
        engine = open_engine(source, faster=faster)
        assert isinstance(engine, OnnxEngine | ProgramEngine)
        return ExportedViT(engine) if isinstance(engine.told.config, ViTConfig) else ExportedResNet(engine)
    if faster is None:
        return load(source)
    return quickened(load(source, image=faster.image), faster)


class _Exported(nn.Module):
    def __init__(self, engine: OnnxEngine | ProgramEngine) -> None:
        nn.Module.__init__(self)  # without the layers of the parent class
        self.config: Any = engine.told.config
        self.preprocess: Preprocess | None = engine.preprocess
        self.labels, self.facts = engine.told.labels, engine.told.facts
        self.report: Any = None
        self.engine = engine
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # empty; its device is where callers put the images
        self.eval()

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
        """Undo the normalisation exactly, since callers have normalised the images and the file does so itself."""
        scale, shift = constants(self.engine.preprocess)
        pixels = (images.float().cpu() + shift) / scale
        whole = pixels.round()
        if not bool(((pixels - whole).abs() < 0.05).all() and (whole >= 0).all() and (whole <= 255).all()):
            raise VitrailError(
                f"{self.engine.model} needs images whose pixels are whole numbers from 0 to 255; use the run itself"
            )
        made = rearrange(whole.to(torch.uint8), "b c h w -> b h w c").contiguous().numpy()
        return torch.from_numpy(self.engine.logits(made))

    def features(self, images: Float[Tensor, "b c height width"]) -> NoReturn:
        self._closed()

    def encode(self, *arguments: Any) -> NoReturn:
        self._closed()

    def patches(self, images: Float[Tensor, "b c height width"]) -> NoReturn:
        self._closed()

    def state_dict(self, *arguments: Any, **options: Any) -> NoReturn:
        self._closed()

    def __copy__(self) -> NoReturn:
        """Refuse speedups, which begin with a copy around the same weights."""
        raise VitrailError(as_exported(self.engine.model))

    def _closed(self) -> NoReturn:
        raise VitrailError(f"{self.engine.model} is an exported file, which can only predict; use the run it was exported from")


class ExportedViT(_Exported, ViT):
    """A file exported from a Vision Transformer."""


class ExportedResNet(_Exported, ResNet):
    """A file exported from a ResNet."""
