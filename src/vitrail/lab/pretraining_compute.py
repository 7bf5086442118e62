"""``vitrail lab compute``: the pre-training compute of Table 6, from our own count of multiply-adds.

    FLOPs = 2 per multiply-add x 3 (a forward pass, and a backward pass of twice its cost) x images x epochs

The paper does not say how it counts. With two FLOPs per multiply-add, three passes, the 303 million images of JFT-300M and 224
pixels the numbers of Transformers and hybrids are reproduced. Those of ResNets are 3 to 5 % too high, and match when products
with the zeros of a convolution's padding are left out, as compilers do; so both counts are given.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult
from vitrail.lab.trials import JobResult
from vitrail.models.config import ModelConfig, ViTConfig
from vitrail.models.cost import cost
from vitrail.models.variants import variant
from vitrail.plot.canvas import Figure
from vitrail.plot.line_chart import line_chart
from vitrail.plot.markup import escape
from vitrail.report.html import html_table

JFT_IMAGES = 303_000_000  # of JFT-300M (section 4.1)
CLASSES = 18_291
PASSES, FLOPS = 3, 2  # a forward pass and a backward pass of twice its cost; a multiply and an add
EXA = 1e18
TOLERANCE = 0.03
Side = tuple[int, int]


@dataclass(frozen=True)
class TableRow:
    """A row of Table 6, with its pre-training compute in exaFLOPs."""

    paper: str
    model: str
    epochs: int
    exaflops: float


TABLE = (
    TableRow("ViT-B/32", "B/32", 7, 55),
    TableRow("ViT-B/16", "B/16", 7, 224),
    TableRow("ViT-L/32", "L/32", 7, 196),
    TableRow("ViT-L/16", "L/16", 7, 783),
    TableRow("ViT-L/16", "L/16", 14, 1567),
    TableRow("ViT-H/14", "H/14", 14, 4262),
    TableRow("ResNet50x1", "R50x1", 7, 50),
    TableRow("ResNet50x2", "R50x2", 7, 199),
    TableRow("ResNet101x1", "R101x1", 7, 96),
    TableRow("ResNet152x1", "R152x1", 7, 141),
    TableRow("ResNet152x2", "R152x2", 7, 563),
    TableRow("ResNet152x2", "R152x2", 14, 1126),
    TableRow("ResNet200x3", "R200x3", 14, 3306),
    TableRow("R50x1+ViT-B/32", "R50+B/32", 7, 106),
    TableRow("R50x1+ViT-B/16", "R50+B/16", 7, 274),
    TableRow("R50x1+ViT-L/32", "R50+L/32", 7, 246),
    TableRow("R50x1+ViT-L/16", "R50+L/16", 7, 859),
    TableRow("R50x1+ViT-L/16", "R50+L/16", 14, 1668),
)


@dataclass(frozen=True)
class CountedRow:
    """Our count of a row: all products, and those with padding."""

    paper_row: TableRow
    macs: int
    padding_macs: int  # multiply-adds with zeros of the padding

    @property
    def exaflops_with_padding(self) -> float:
        return to_exaflops(self.macs, self.paper_row.epochs)

    @property
    def exaflops(self) -> float:
        return to_exaflops(self.macs - self.padding_macs, self.paper_row.epochs)

    @property
    def relative_difference(self) -> float:
        """Relative difference of the count without padding from the paper's."""
        return self.exaflops / self.paper_row.exaflops - 1


def to_exaflops(macs: int, epochs: float) -> float:
    return FLOPS * PASSES * macs * JFT_IMAGES * epochs / EXA


def count_row(paper_row: TableRow) -> CountedRow:
    config = variant(paper_row.model, classes=CLASSES)
    return CountedRow(paper_row, cost(config).macs, padding_macs(config))


def padding_macs(config: ModelConfig) -> int:
    """Count the multiply-adds of convolutions with zero padding; a Transformer has none."""
    if isinstance(config, ViTConfig) and config.stem is None:
        return 0
    return sum(inputs * outputs * zeros for inputs, outputs, zeros in _convolutions(config))


def _convolutions(config: ModelConfig) -> Iterator[tuple[int, int, int]]:
    """Yield input channels, output channels and padded taps of each convolution larger than 1 x 1."""
    root = config.stem if isinstance(config, ViTConfig) else config
    symmetric = not isinstance(config, ViTConfig)
    assert root is not None
    yield config.channels, root.width, _padded_taps(config.image, 7, 2, symmetric)
    side = _halved(_halved(config.image))
    for stage, depth in enumerate(root.stages):
        width = root.width * 2**stage
        for unit in range(depth):
            stride = 2 if stage and not unit else 1
            yield width, width, _padded_taps(side, 3, stride, symmetric)
            side = _halved(side) if stride == 2 else side


def _padded_taps(image: Side, kernel: int, stride: int, symmetric: bool) -> int:
    """Count the kernel taps of one channel that fall on padding: all taps less those inside along both axes."""
    high, wide = (_inner_taps(side, kernel, stride, symmetric) for side in image)
    out = [-(-side // stride) for side in image]
    return out[0] * out[1] * kernel**2 - high * wide


def _inner_taps(side: int, kernel: int, stride: int, symmetric: bool) -> int:
    out = -(-side // stride)
    same_padding = max((out - 1) * stride + kernel - side, 0) // 2  # TensorFlow's SAME, which is asymmetric
    before = kernel // 2 if symmetric else same_padding
    return sum(0 <= position * stride - before + tap < side for position in range(out) for tap in range(kernel))


def _halved(side: Side) -> Side:
    return -(-side[0] // 2), -(-side[1] // 2)


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    counts = [count_row(paper_row) for paper_row in TABLE]
    mismatches = [count for count in counts if abs(count.relative_difference) > TOLERANCE]
    largest = max(abs(count.relative_difference) for count in counts if count not in mismatches)
    summary = f"Our count reproduces {len(counts) - len(mismatches)} of {len(counts)} rows of Table 6 to within {largest:.1%}"
    summary += (
        f"; {', '.join(_row_name(count.paper_row) for count in mismatches)} do{'es' if len(mismatches) == 1 else ''} not match."
        if mismatches
        else "."
    )
    numbers = [
        {
            "model": count.paper_row.model,
            "epochs": count.paper_row.epochs,
            "macs": count.macs,
            "padding_macs": count.padding_macs,
            "exaflops": count.exaflops_with_padding,
            "without_padding": count.exaflops,
            "paper": count.paper_row.exaflops,
            "relative_difference": count.relative_difference,
        }
        for count in counts
    ]
    return ExperimentResult(
        summary,
        [_table(counts), *_mismatch_notes(counts, mismatches), _difference_figure(counts)],
        {"rows": numbers, "images": JFT_IMAGES},
    )


def _table(counts: Sequence[CountedRow]) -> str:
    columns = ("row", "model", "#epochs", "#GMACs", "#exaFLOPs, all products", "#without padding", "#paper", "#difference", "")
    cells = []
    for row, count in enumerate(counts):
        matches, paper_row = abs(count.relative_difference) <= TOLERANCE, count.paper_row
        padded = count.exaflops_with_padding
        cells.append(
            [
                str(row),
                escape(paper_row.paper),
                str(paper_row.epochs),
                f"{count.macs / 1e9:,.2f}",
                f'{padded:,.1f} <span class="soft">{padded / paper_row.exaflops - 1:+.1%}</span>',
                f"{count.exaflops:,.1f}",
                f"{paper_row.exaflops:,.0f}",
                f"{count.relative_difference:+.1%}",
                f'<span class="{"good" if matches else "bad"}">{"matches" if matches else "does not match"}</span>',
            ]
        )
    return html_table(columns, cells)


def _mismatch_notes(counts: Sequence[CountedRow], mismatches: Sequence[CountedRow]) -> Iterator[str]:
    """Yield what the paper's own numbers say about a row that does not match."""
    for count in mismatches:
        twins = [other for other in counts if other.paper_row.model == count.paper_row.model and other is not count]
        for other in twins:
            compute_ratio = other.paper_row.exaflops / count.paper_row.exaflops
            epoch_ratio = other.paper_row.epochs / count.paper_row.epochs
            expected = other.paper_row.exaflops / epoch_ratio
            yield (
                f"<p>Our count of {escape(_row_name(count.paper_row))} differs by "
                f"{count.relative_difference:+.1%}, that of {escape(_row_name(other.paper_row))} by "
                f"{other.relative_difference:+.1%}: in the paper the second has {compute_ratio:.2f} times the compute of the "
                f"first, but {epoch_ratio:g} times its epochs. Scaled from the second row the first would be {expected:,.0f}, "
                "from which ours differs by "
                f"{count.exaflops / expected - 1:+.1%}; so the printed number includes more than the epochs.</p>"
            )


def _row_name(paper_row: TableRow) -> str:
    return f"{paper_row.paper} ({paper_row.epochs} epochs)"


def _difference_figure(counts: Sequence[CountedRow]) -> Figure:
    """Plot our counts relative to the paper's, with and without padding."""
    lines: dict[str, list[tuple[float, float]]] = {
        "all products": [(row, count.exaflops_with_padding / count.paper_row.exaflops - 1) for row, count in enumerate(counts)],
        "without padding": [(row, count.relative_difference) for row, count in enumerate(counts)],
        "3 % above": [(0.0, TOLERANCE), (len(counts) - 1.0, TOLERANCE)],
        "3 % below": [(0.0, -TOLERANCE), (len(counts) - 1.0, -TOLERANCE)],
    }
    title = "Relative difference of our count from the paper's, by row of the table"
    return line_chart(title, "ours / paper - 1", "row of the table", lines, dashed=("3 % above", "3 % below"),
                 columns=len(counts), percent=True)  # fmt: skip


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
    build_result=build_result,
    data="none",
)
