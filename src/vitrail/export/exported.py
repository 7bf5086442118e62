"""An exported file in a model's place, so that whatever predicts and evaluates takes it like any other.

It answers pictures and does nothing else: what looks inside a model needs the run that it was exported from.
b pictures, c channels, k classes.
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
    """What the name leads to: an exported file in a model's place, or what ``vitrail.load`` reads, behind these switches."""
    if Path(source).suffix.lower() in ENDINGS:
        engine = open_engine(source, faster=faster)
        assert isinstance(engine, OnnxEngine | ProgramEngine)
        return ExportedViT(engine) if isinstance(engine.told.config, ViTConfig) else ExportedResNet(engine)
    if faster is None:
        return load(source)
    return quickened(load(source, image=faster.image), faster)


class _Exported(nn.Module):
    def __init__(self, engine: OnnxEngine | ProgramEngine) -> None:
        nn.Module.__init__(self)  # none of the layers that the class would make
        self.config: Any = engine.told.config
        self.preprocess: Preprocess | None = engine.preprocess
        self.labels, self.facts = engine.told.labels, engine.told.facts
        self.report: Any = None
        self.engine = engine
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # where those who ask are told to bring pictures
        self.eval()

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
        """Those who ask have normalised already, which the file does itself; so the pixels are got back, exactly."""
        scale, shift = constants(self.engine.preprocess)
        pixels = (images.float().cpu() + shift) / scale
        whole = pixels.round()
        if not bool(((pixels - whole).abs() < 0.05).all() and (whole >= 0).all() and (whole <= 255).all()):
            raise VitrailError(
                f"{self.engine.model} takes pixels from 0 to 255, and these pictures are none; use the run itself"
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
        """What makes a model faster begins with a copy around the same weights."""
        raise VitrailError(as_exported(self.engine.model))

    def _closed(self) -> NoReturn:
        raise VitrailError(f"{self.engine.model} answers pictures and cannot be looked into; use the run it was exported from")


class ExportedViT(_Exported, ViT):
    """A file that was exported from a Vision Transformer."""


class ExportedResNet(_Exported, ResNet):
    """A file that was exported from a ResNet."""
