"""``vitrail lab variants``: Table 1, with parameters and MACs counted from the configurations."""

from collections.abc import Sequence

from vitrail.lab.experiment import Experiment, ExperimentOptions, ExperimentResult
from vitrail.lab.summaries import join_names
from vitrail.lab.trials import JobResult
from vitrail.models.config import ViTConfig
from vitrail.models.cost import cost
from vitrail.models.variants import SIZES, variant
from vitrail.plot.markup import escape
from vitrail.report.html import html_table

# millions, by Table 1, which does not state the patch size of Large
PAPER = {"B/16": 86, "L/16": 307, "L/32": 307, "H/14": 632}
NAMES = ("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/32", "L/16", "H/14")
HYBRIDS = ("R26+S/32", "R50+B/16", "R50+L/32")
IMAGE = 224


def build_result(options: ExperimentOptions, rows: Sequence[JobResult]) -> ExperimentResult:
    cells, numbers = [], {}
    for name in (*NAMES, *HYBRIDS):
        config, paper_millions = variant(name, image=IMAGE), PAPER.get(name)
        costs, pretrained_count = cost(config), pretraining_parameters(name)
        assert isinstance(config, ViTConfig)
        cells.append(
            [escape(name), str(config.depth), f"{config.width:,}", f"{config.mlp:,}", str(config.heads), f"{costs.tokens:,}",
             f"{costs.parameters:,}", f"{pretrained_count:,}", "" if paper_millions is None else f"{paper_millions} M",
             f"{costs.macs / 1e9:.2f} G"]
        )  # fmt: skip
        numbers[name] = {
            "parameters": costs.parameters,
            "pretrained": pretrained_count,
            "macs": costs.macs,
            "paper": paper_millions,
        }
    columns = ("model", "#layers", "#width", "#MLP", "#heads", "#tokens", "#parameters", "#pre-trained", "#Table 1",
               "#MACs at 224")  # fmt: skip
    return ExperimentResult(_summary(), [html_table(columns, cells)], {"models": numbers, "sizes": list(SIZES)})


def pretraining_parameters(name: str) -> int:
    """Count the parameters with the hidden layer of the pre-training head, and without the classifier, whose size varies."""
    return cost(variant(name, image=IMAGE, head="mlp", classes=0)).parameters


def _summary() -> str:
    millions = {name: pretraining_parameters(name) / 1e6 for name in PAPER}
    exact = [
        f"{name} ({millions[name]:.1f} M)" for name, paper_millions in PAPER.items() if round(millions[name]) == paper_millions
    ]
    others = [
        f"{name} has {millions[name]:.1f} M instead of {paper_millions} M"
        for name, paper_millions in PAPER.items()
        if round(millions[name]) != paper_millions
    ]
    matching = join_names(exact) if exact else "none"
    summary = f"Counted with the pre-training head and without the classifier, {matching} match the table"
    return f"{summary}; {', '.join(others)}." if others else f"{summary}."


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
    build_result=build_result,
    data="none",
)
