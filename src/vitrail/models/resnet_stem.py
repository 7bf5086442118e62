"""The ResNet stem before a hybrid's patch embedding (Dosovitskiy et al. 2021, B.1; official code): post-activation bottlenecks,
standardised convolutions, TensorFlow's padding, group norm.

b batch, c channels.
"""

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.std_conv import StdConv2d, pad_same
from vitrail.models.config import StemConfig


class ResNetStem(nn.Module):
    """A 7x7 convolution and a max pool of stride 2 each, then the stages."""

    def __init__(self, channels: int, stem: StemConfig) -> None:
        super().__init__()
        conv = partial(StdConv2d, pad="same", rule=stem.standardise, eps=stem.standardise_eps)
        norm = partial(nn.GroupNorm, 32, eps=stem.norm_eps)
        self.conv = conv(channels, stem.width, 7, stride=2)
        self.norm = norm(stem.width)
        stages: list[list[Bottleneck]] = []
        channels = stem.width
        for stage, depth in enumerate(stem.stages):
            width = stem.width * 2**stage
            strides = [1 if stage == 0 else 2, *[1] * (depth - 1)]
            inputs = [channels, *[4 * width] * (depth - 1)]
            stages.append([Bottleneck(i, width, stride, conv, norm) for i, stride in zip(inputs, strides, strict=True)])
            channels = 4 * width
        self.stages = nn.Sequential(*(nn.Sequential(*stage) for stage in stages))

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d h w"]:
        x = F.relu(self.norm(self.conv(images)))
        x = F.max_pool2d(pad_same(x, kernel=3, stride=2, value=float("-inf")), kernel_size=3, stride=2)
        return self.stages(x)


class Bottleneck(nn.Module):
    """Post-activation bottleneck (1x1, 3x3, 1x1), added to the input or, if the shape changes, to its projection."""

    def __init__(
        self, channels: int, width: int, stride: int, conv: Callable[..., StdConv2d], norm: Callable[..., nn.GroupNorm]
    ) -> None:
        super().__init__()
        out = 4 * width
        changes = channels != out or stride != 1
        self.shortcut = nn.Sequential(conv(channels, out, 1, stride=stride), norm(out)) if changes else nn.Identity()
        self.conv1, self.norm1 = conv(channels, width, 1), norm(width)
        self.conv2, self.norm2 = conv(width, width, 3, stride=stride), norm(width)
        self.conv3, self.norm3 = conv(width, out, 1), norm(out)
        nn.init.zeros_(self.norm3.weight)  # every bottleneck starts as its shortcut

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d h w"]:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.shortcut(x) + self.norm3(self.conv3(y)))
