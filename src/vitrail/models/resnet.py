"""The ResNets that the paper compares with: BiT (Kolesnikov et al. 2020), pre-activation (He et al. 2016), widened by a factor.

b batch, c channels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.data.preprocess import Preprocess
from vitrail.layers.std_conv import StdConv2d
from vitrail.models.config import ResNetConfig, check_images
from vitrail.models.vit_parts import zero_head


class ResNet(nn.Module):
    """A BiT ResNet: images to logits; ``features`` returns the representation before the head."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        c = self.config = config
        self.preprocess: Preprocess | None = None
        self.class_names: tuple[str, ...] | None = None
        self.load_report: Any = None
        self.metadata: dict[str, Any] = {}
        conv = partial(StdConv2d, pad="even", rule=c.standardise, eps=c.standardise_eps)
        norm = partial(nn.GroupNorm, 32, eps=c.norm_eps)
        self.conv = conv(c.channels, c.width, 7, stride=2)
        stages: list[nn.Module] = []
        channels = c.width
        for stage, depth in enumerate(c.stages):
            width = c.width * 2**stage
            first = PreActBottleneck(channels, width, 1 if stage == 0 else 2, conv, norm)
            stages.append(nn.Sequential(first, *(PreActBottleneck(4 * width, width, 1, conv, norm) for _ in range(depth - 1))))
            channels = 4 * width
        self.stages = nn.Sequential(*stages)
        self.norm = norm(channels)
        self.head = zero_head(channels, c.classes)

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b k"]:
        return self.head(self.features(images))

    def features(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d"]:
        check_images(tuple(images.shape), self.config.channels)
        padded = F.pad(self.conv(images), (1, 1, 1, 1))  # zeros, not the minus infinity of max_pool2d
        x = F.max_pool2d(padded, kernel_size=3, stride=2)
        del padded
        return F.relu(self.norm(self.stages(x))).mean(dim=(2, 3))


class PreActBottleneck(nn.Module):
    """Pre-activation bottleneck (1x1, 3x3, 1x1), added to the input or, if the shape changes, to its projection."""

    def __init__(
        self, channels: int, width: int, stride: int, conv: Callable[..., StdConv2d], norm: Callable[..., nn.GroupNorm]
    ) -> None:
        super().__init__()
        out = 4 * width
        self.shortcut = conv(channels, out, 1, stride=stride) if channels != out or stride != 1 else None
        self.norm1, self.conv1 = norm(channels), conv(channels, width, 1)
        self.norm2, self.conv2 = norm(width), conv(width, width, 3, stride=stride)
        self.norm3, self.conv3 = norm(width), conv(width, out, 1)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d h w"]:
        activated = F.relu(self.norm1(x))
        y = self.conv1(activated)
        y = self.conv2(F.relu(self.norm2(y)))
        y = self.conv3(F.relu(self.norm3(y)))
        return y + (x if self.shortcut is None else self.shortcut(activated))
