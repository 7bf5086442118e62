"""The ResNet stem before a hybrid's patch embedding (Dosovitskiy et al. 2021, B.1; official code): post-activation bottlenecks,
standardised convolutions, TensorFlow's padding, group norm.

b batch, c channels.
"""

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.convolution import StandardisedConv, pad_same
from vitrail.models.settings import Stem


class Root(nn.Module):
    """A 7x7 convolution and a max pool of stride 2 each, then the stages."""

    def __init__(self, channels: int, stem: Stem) -> None:
        super().__init__()
        conv = partial(StandardisedConv, pad="same", rule=stem.standardise, epsilon=stem.standardise_epsilon)
        norm = partial(nn.GroupNorm, 32, eps=stem.norm_epsilon)
        self.conv = conv(channels, stem.width, 7, stride=2)
        self.norm = norm(stem.width)
        units: list[list[Unit]] = []
        channels = stem.width
        for stage, depth in enumerate(stem.stages):
            width = stem.width * 2**stage
            strides = [1 if stage == 0 else 2, *[1] * (depth - 1)]
            inputs = [channels, *[4 * width] * (depth - 1)]
            units.append([Unit(i, width, stride, conv, norm) for i, stride in zip(inputs, strides, strict=True)])
            channels = 4 * width
        self.stages = nn.Sequential(*(nn.Sequential(*stage) for stage in units))

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d h w"]:
        x = F.relu(self.norm(self.conv(images)))
        x = F.max_pool2d(pad_same(x, kernel=3, stride=2, value=float("-inf")), kernel_size=3, stride=2)
        return self.stages(x)


class Unit(nn.Module):
    """Post-activation bottleneck (1x1, 3x3, 1x1), added to the input or, if the shape changes, to its projection."""

    def __init__(
        self, channels: int, width: int, stride: int, conv: Callable[..., StandardisedConv], norm: Callable[..., nn.GroupNorm]
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
