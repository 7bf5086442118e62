"""``vitrail lab variants``: Table 1, with parameters and MACs counted from the configurations."""

from collections.abc import Sequence

from vitrail.lab.experiment import Asked, Experiment, Told
from vitrail.lab.show import one_of
from vitrail.lab.trial import Row
from vitrail.models.cost import cost
from vitrail.models.settings import ViTConfig
from vitrail.models.variants import SIZES, variant
from vitrail.report.markup import text
from vitrail.report.page import table

PAPER = {
    "B/16": 86,
    "L/16": 307,
    "L/32": 307,
    "H/14": 632,
}  # millions, by Table 1, which does not state the patch size of Large
NAMES = ("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/32", "L/16", "H/14")
HYBRIDS = ("R26+S/32", "R50+B/16", "R50+L/32")
IMAGE = 224


def tell(asked: Asked, rows: Sequence[Row]) -> Told:
    cells, numbers = [], {}
    for name in (*NAMES, *HYBRIDS):
        config, said = variant(name, image=IMAGE), PAPER.get(name)
        price, body = cost(config), pretrained(name)
        assert isinstance(config, ViTConfig)
        cells.append(
            [text(name), str(config.depth), f"{config.width:,}", f"{config.mlp:,}", str(config.heads), f"{price.tokens:,}",
             f"{price.parameters:,}", f"{body:,}", "" if said is None else f"{said} M", f"{price.macs / 1e9:.2f} G"]
        )  # fmt: skip
        numbers[name] = {"parameters": price.parameters, "pretrained": body, "macs": price.macs, "paper": said}
    columns = ("model", "#layers", "#width", "#MLP", "#heads", "#tokens", "#parameters", "#pre-trained", "#Table 1",
               "#MACs at 224")  # fmt: skip
    return Told(_answer(), [table(columns, cells)], {"models": numbers, "sizes": list(SIZES)})


def pretrained(name: str) -> int:
    """Count the parameters with the hidden layer of the pre-training head, and without the classifier, whose size varies."""
    return cost(variant(name, image=IMAGE, head="mlp", classes=0)).parameters


def _answer() -> str:
    found = {name: pretrained(name) / 1e6 for name in PAPER}
    exact = [f"{name} ({found[name]:.1f} M)" for name, said in PAPER.items() if round(found[name]) == said]
    others = [
        f"{name} has {found[name]:.1f} M instead of {said} M" for name, said in PAPER.items() if round(found[name]) != said
    ]
    answer = (
        f"Counted with the pre-training head and without the classifier, {one_of(exact) if exact else 'none'} match the table"
    )
    return f"{answer}; {', '.join(others)}." if others else f"{answer}."


EXPERIMENT = Experiment(
    name="variants",
    title="Table 1: the variants of the Vision Transformer",
    paper="Base has 12 layers, width 768, MLP 3072, 12 heads and 86 M parameters; Large 24, 1024, 4096, 16 and 307 M; Huge "
    "32, 1280, 5120, 16 and 632 M (Dosovitskiy et al. 2021, Table 1).",
    scaled="Nothing: parameters and MACs are counted from the configurations, stage by stage, and tests compare every stage "
    "with the built model and its operators. Parameters and MACs are with a classifier of 1,000 classes; pre-trained ones are "
    "with the hidden layer of the pre-training head and without a classifier, which gives the table's numbers. Its Large is "
    "L/32.",
    limits="MACs are multiply-adds of matrix products and convolutions for one image; normalisation, activations and the "
    "softmax are left out, as usual.",
    tell=tell,
    data="none",
)
