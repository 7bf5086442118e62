"""A hybrid's ResNet stem for an image size that is known only when the graph runs.

TensorFlow's SAME padding depends on the input size, and torch.export would carry that arithmetic through all layers: the
nested terms take forever to simplify. But image sides are multiples of the total stride, so in each layer the padding is
kernel minus stride at any size. b batch, c channels, d output channels.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.std_conv import StdConv2d, standardise
from vitrail.models.resnet_stem import ResNetStem


def with_dynamic_padding(stem: ResNetStem) -> nn.Module:
    """Return a stem equivalent to ``ResNetStem`` with fixed padding; its convolutions are replaced in place."""
    for module in [*stem.modules()]:
        for name, conv in [*module.named_children()]:
            if isinstance(conv, StdConv2d):
                setattr(module, name, _DynamicConv(conv))
    return _DynamicStem(stem)


class _DynamicStem(nn.Module):
    def __init__(self, stem: ResNetStem) -> None:
        super().__init__()
        self.conv, self.norm, self.stages = stem.conv, stem.norm, stem.stages

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d h w"]:
        x = F.relu(self.norm(self.conv(images)))
        return self.stages(F.max_pool2d(_pad(x, 3, 2, float("-inf")), kernel_size=3, stride=2))


class _DynamicConv(nn.Module):
    """A convolution whose kernels are standardised once."""

    def __init__(self, conv: StdConv2d) -> None:
        super().__init__()
        self.kernel, self.stride = conv.kernel_size[0], conv.stride[0]
        self.weight = nn.Parameter(standardise(conv.weight.detach(), conv.rule, conv.eps), requires_grad=False)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d h w"]:
        return F.conv2d(_pad(x, self.kernel, self.stride), self.weight, stride=self.stride)


def _pad(x: Float[Tensor, "b c height width"], kernel: int, stride: int, value: float = 0.0) -> Float[Tensor, "b c h w"]:
    """Pad by kernel minus stride; if negative, crop the last row and column, which the stride would skip."""
    before = max(kernel - stride, 0) // 2
    after = kernel - stride - before
    return F.pad(x, (before, after, before, after), value=value) if kernel != stride else x
