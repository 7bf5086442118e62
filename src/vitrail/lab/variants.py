"""``vitrail lab variants``: Table 1, and what the models cost, counted from their settings beside the paper's numbers."""

from collections.abc import Sequence

from vitrail.lab.experiment import Asked, Experiment, Told
from vitrail.lab.trial import Row
from vitrail.models.cost import cost
from vitrail.models.settings import ViTConfig
from vitrail.models.variants import SIZES, variant
from vitrail.report.page import table, text

PAPER = {"B/16": 86e6, "L/16": 307e6, "H/14": 632e6}  # parameters as Table 1 has them, in millions without a fraction
NAMES = ("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/32", "L/16", "H/14")
HYBRIDS = ("R26+S/32", "R50+B/16", "R50+L/32")
IMAGE = 224


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    found = {name: (variant(name, image=IMAGE), cost(variant(name, image=IMAGE))) for name in (*NAMES, *HYBRIDS)}
    cells = []
    for name, (config, price) in found.items():
        assert isinstance(config, ViTConfig)
        said = PAPER.get(name)
        off = "" if said is None else f"{said / 1e6:.0f} M"
        cells.append(
            [text(name), str(config.depth), f"{config.width:,}", f"{config.mlp:,}", str(config.heads), f"{price.tokens:,}",
             f"{price.parameters:,}", off, f"{price.macs / 1e9:.2f} G"]
        )  # fmt: skip
    columns = ("model", "#layers", "#width", "#MLP", "#heads", "#tokens", "#parameters", "#in Table 1", "#MACs at 224")
    off = {name: found[name][1].parameters / said - 1 for name, said in PAPER.items()}
    exact = [name for name, share in off.items() if abs(share) < 0.5 / (PAPER[name] / 1e6)]
    others = [
        f"{name} {found[name][1].parameters / 1e6:.1f} M where it has {PAPER[name] / 1e6:.0f} M"
        for name in off
        if name not in exact
    ]
    answer = f"Parameters agree with the table's to its last digit for {' and '.join(exact) or 'none'}"
    answer += f"; {', '.join(others)} ({max(map(abs, off.values())):.1%} at most)." if others else "."
    numbers = {
        name: {"parameters": price.parameters, "macs": price.macs, "paper": PAPER.get(name)}
        for name, (_, price) in found.items()
    }
    return Told(answer, [table(columns, cells)], {"models": numbers, "sizes": list(SIZES)})


EXPERIMENT = Experiment(
    name="variants",
    title="Table 1: the variants of the Vision Transformer",
    paper="Base has 12 layers, width 768, MLP 3072, 12 heads and 86 M parameters; Large 24, 1024, 4096, 16 and 307 M; Huge 32, "
    "1280, 5120, 16 and 632 M (Dosovitskiy et al. 2021, Table 1).",
    scaled="Nothing: parameters and MACs are counted from the settings, stage by stage, and tests hold every stage against the "
    "built model and its operators. A classifier of 1,000 classes is counted, which the paper's rounding hides.",
    limits="MACs are multiply-adds of matrix products and convolutions for one picture; norms, activations and the softmax are "
    "left out, as is usual.",
    tell=tell,
    data="none",
)
