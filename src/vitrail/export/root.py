"""A hybrid's ResNet stem for an image size that is known only when the graph runs.

TensorFlow's SAME padding depends on the input size, and torch.export would carry that arithmetic through all layers: the
nested terms take forever to simplify. But image sides are multiples of the total stride, so in each layer the padding is
kernel minus stride at any size. b batch, c channels, d output channels.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.layers.convolution import StandardisedConv, standardise
from vitrail.models.hybrid import Root


def follow(root: Root) -> nn.Module:
    """Return a stem equivalent to ``Root`` with fixed padding; its convolutions are replaced in place."""
    for module in [*root.modules()]:
        for name, conv in [*module.named_children()]:
            if isinstance(conv, StandardisedConv):
                setattr(module, name, _Conv(conv))
    return _Root(root)


class _Root(nn.Module):
    def __init__(self, root: Root) -> None:
        super().__init__()
        self.conv, self.norm, self.stages = root.conv, root.norm, root.stages

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d h w"]:
        x = F.relu(self.norm(self.conv(images)))
        return self.stages(F.max_pool2d(_padded(x, 3, 2, float("-inf")), kernel_size=3, stride=2))


class _Conv(nn.Module):
    """A convolution whose kernels are standardised once."""

    def __init__(self, conv: StandardisedConv) -> None:
        super().__init__()
        self.kernel, self.stride = conv.kernel_size[0], conv.stride[0]
        self.weight = nn.Parameter(standardise(conv.weight.detach(), conv.rule, conv.epsilon), requires_grad=False)

    def forward(self, x: Float[Tensor, "b c height width"]) -> Float[Tensor, "b d h w"]:
        return F.conv2d(_padded(x, self.kernel, self.stride), self.weight, stride=self.stride)


def _padded(x: Float[Tensor, "b c height width"], kernel: int, stride: int, value: float = 0.0) -> Float[Tensor, "b c h w"]:
    """Pad by kernel minus stride; if negative, crop the last row and column, which the stride would skip."""
    before = max(kernel - stride, 0) // 2
    after = kernel - stride - before
    return F.pad(x, (before, after, before, after), value=value) if kernel != stride else x
