"""``vitrail lab compute``: the pre-training compute of Table 6, from our own count of multiply-adds.

    FLOPs = 2 per multiply-add x 3 (a forward pass, and a backward pass of twice its cost) x images x epochs

The paper does not say how it counts. With two FLOPs per multiply-add, three passes, the 303 million images of JFT-300M and 224
pixels the numbers of Transformers and hybrids are reproduced. Those of ResNets are 3 to 5 % too high, and match when products
with the zeros of a convolution's padding are left out, as compilers do; so both counts are given.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitrail.lab.experiment import Asked, Experiment, Told
from vitrail.lab.trial import Row
from vitrail.models.cost import cost
from vitrail.models.settings import ModelConfig, ViTConfig
from vitrail.models.variants import variant
from vitrail.report.chart import chart
from vitrail.report.drawing import Drawing
from vitrail.report.markup import text
from vitrail.report.page import table

PICTURES = 303_000_000  # of JFT-300M (section 4.1)
CLASSES = 18_291
PASSES, FLOPS = 3, 2  # a forward pass and a backward pass of twice its cost; a multiply and an add
EXA = 1e18
NEAR = 0.03
Side = tuple[int, int]


@dataclass(frozen=True)
class Said:
    """A row of Table 6, with its pre-training compute in exaFLOPs."""

    paper: str
    model: str
    epochs: int
    exa: float


TABLE = (
    Said("ViT-B/32", "B/32", 7, 55),
    Said("ViT-B/16", "B/16", 7, 224),
    Said("ViT-L/32", "L/32", 7, 196),
    Said("ViT-L/16", "L/16", 7, 783),
    Said("ViT-L/16", "L/16", 14, 1567),
    Said("ViT-H/14", "H/14", 14, 4262),
    Said("ResNet50x1", "R50x1", 7, 50),
    Said("ResNet50x2", "R50x2", 7, 199),
    Said("ResNet101x1", "R101x1", 7, 96),
    Said("ResNet152x1", "R152x1", 7, 141),
    Said("ResNet152x2", "R152x2", 7, 563),
    Said("ResNet152x2", "R152x2", 14, 1126),
    Said("ResNet200x3", "R200x3", 14, 3306),
    Said("R50x1+ViT-B/32", "R50+B/32", 7, 106),
    Said("R50x1+ViT-B/16", "R50+B/16", 7, 274),
    Said("R50x1+ViT-L/32", "R50+L/32", 7, 246),
    Said("R50x1+ViT-L/16", "R50+L/16", 7, 859),
    Said("R50x1+ViT-L/16", "R50+L/16", 14, 1668),
)


@dataclass(frozen=True)
class Counted:
    """Our count of a row: all products, and those with padding."""

    said: Said
    macs: int
    padded: int  # multiply-adds with zeros of the padding

    @property
    def whole(self) -> float:
        return exa(self.macs, self.said.epochs)

    @property
    def seen(self) -> float:
        return exa(self.macs - self.padded, self.said.epochs)

    @property
    def off(self) -> float:
        """Relative difference of the count without padding from the paper's."""
        return self.seen / self.said.exa - 1


def exa(macs: int, epochs: float) -> float:
    return FLOPS * PASSES * macs * PICTURES * epochs / EXA


def counted(said: Said) -> Counted:
    config = variant(said.model, classes=CLASSES)
    return Counted(said, cost(config).macs, padded(config))


def padded(config: ModelConfig) -> int:
    """Count the multiply-adds of convolutions with zero padding; a Transformer has none."""
    if isinstance(config, ViTConfig) and config.stem is None:
        return 0
    return sum(inputs * outputs * zeros for inputs, outputs, zeros in _convolutions(config))


def _convolutions(config: ModelConfig) -> Iterator[tuple[int, int, int]]:
    """Yield input channels, output channels and padded taps of each convolution larger than 1 x 1."""
    root = config.stem if isinstance(config, ViTConfig) else config
    even = not isinstance(config, ViTConfig)
    assert root is not None
    yield config.channels, root.width, _outside(config.image, 7, 2, even)
    side = _halved(_halved(config.image))
    for stage, depth in enumerate(root.stages):
        width = root.width * 2**stage
        for unit in range(depth):
            stride = 2 if stage and not unit else 1
            yield width, width, _outside(side, 3, stride, even)
            side = _halved(side) if stride == 2 else side


def _outside(image: Side, kernel: int, stride: int, even: bool) -> int:
    """Count the kernel taps of one channel that fall on padding: all taps less those inside along both axes."""
    high, wide = (_inside(side, kernel, stride, even) for side in image)
    out = [-(-side // stride) for side in image]
    return out[0] * out[1] * kernel**2 - high * wide


def _inside(side: int, kernel: int, stride: int, even: bool) -> int:
    out = -(-side // stride)
    before = kernel // 2 if even else max((out - 1) * stride + kernel - side, 0) // 2  # TensorFlow's SAME padding is asymmetric
    return sum(0 <= place * stride - before + tap < side for place in range(out) for tap in range(kernel))


def _halved(side: Side) -> Side:
    return -(-side[0] // 2), -(-side[1] // 2)


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    found = [counted(said) for said in TABLE]
    far = [one for one in found if abs(one.off) > NEAR]
    most = max(abs(one.off) for one in found if one not in far)
    answer = f"Our count reproduces {len(found) - len(far)} of {len(found)} rows of Table 6 to within {most:.1%}"
    answer += f"; {', '.join(_named(one.said) for one in far)} do{'es' if len(far) == 1 else ''} not match." if far else "."
    numbers = [
        {
            "model": one.said.model, "epochs": one.said.epochs, "macs": one.macs, "padding_macs": one.padded,
            "exaflops": one.whole, "without_padding": one.seen, "paper": one.said.exa, "relative_difference": one.off,
        }
        for one in found
    ]  # fmt: skip
    return Told(answer, [_table(found), *_why(found, far), _drawn(found)], {"rows": numbers, "images": PICTURES})


def _table(found: Sequence[Counted]) -> str:
    columns = ("row", "model", "#epochs", "#GMACs", "#exaFLOPs, all products", "#without padding", "#paper", "#difference", "")
    cells = []
    for row, one in enumerate(found):
        fits = abs(one.off) <= NEAR
        cells.append(
            [str(row), text(one.said.paper), str(one.said.epochs), f"{one.macs / 1e9:,.2f}",
             f'{one.whole:,.1f} <span class="soft">{one.whole / one.said.exa - 1:+.1%}</span>', f"{one.seen:,.1f}",
             f"{one.said.exa:,.0f}", f"{one.off:+.1%}",
             f'<span class="{"good" if fits else "bad"}">{"matches" if fits else "does not match"}</span>']
        )  # fmt: skip
    return table(columns, cells)


def _why(found: Sequence[Counted], far: Sequence[Counted]) -> Iterator[str]:
    """Yield what the paper's own numbers say about a row that does not match."""
    for one in far:
        twins = [other for other in found if other.said.model == one.said.model and other is not one]
        for other in twins:
            times, share = other.said.exa / one.said.exa, other.said.epochs / one.said.epochs
            would = other.said.exa / share
            yield (
                f"<p>Our count of {text(_named(one.said))} differs by {one.off:+.1%}, that of {text(_named(other.said))} by "
                f"{other.off:+.1%}: in the paper the second has {times:.2f} times the compute of the first, but {share:g} "
                f"times its epochs. Scaled from the second row the first would be {would:,.0f}, from which ours differs by "
                f"{one.seen / would - 1:+.1%}; so the printed number includes more than the epochs.</p>"
            )


def _named(said: Said) -> str:
    return f"{said.paper} ({said.epochs} epochs)"


def _drawn(found: Sequence[Counted]) -> Drawing:
    """Plot our counts relative to the paper's, with and without padding."""
    lines: dict[str, list[tuple[float, float]]] = {
        "all products": [(place, one.whole / one.said.exa - 1) for place, one in enumerate(found)],
        "without padding": [(place, one.off) for place, one in enumerate(found)],
        "3 % above": [(0.0, NEAR), (len(found) - 1.0, NEAR)],
        "3 % below": [(0.0, -NEAR), (len(found) - 1.0, -NEAR)],
    }
    title = "Relative difference of our count from the paper's, by row of the table"
    return chart(title, "ours / paper - 1", "row of the table", lines, dashed=("3 % above", "3 % below"),
                 places=len(found), percent=True)  # fmt: skip


EXPERIMENT = Experiment(
    name="compute",
    title="Table 6: pre-training compute in exaFLOPs",
    paper="Table 6 of Dosovitskiy et al. 2021 gives the pre-training compute of every model of its scaling study on JFT-300M, "
    "from 50 exaFLOPs (ResNet50x1) to 4,262 (ViT-H/14). It does not say how they are counted.",
    scaled="Nothing: multiply-adds are counted from the configurations at 224 pixels with a classifier of 18,291 classes. Two "
    "FLOPs per multiply-add, three passes (forward, and backward at twice the cost), 303 million images per epoch.",
    limits="Agreement shows that both count the same products, not how long training takes: normalisation, activations, the "
    "softmax and the optimiser are in neither. That the paper leaves out products with a convolution's padding is our guess. "
    "The paper rounds to whole exaFLOPs, which is 1 % of the smallest.",
    tell=tell,
    data="none",
)
