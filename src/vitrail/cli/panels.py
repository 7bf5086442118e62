"""Options by the panel of the help page that lists them, and the order of the panels, which is the same in every command."""

from functools import partial

import typer

attention_option = partial(typer.Option, rich_help_panel="Attention")
augmentation_option = partial(typer.Option, rich_help_panel="Augmentation")
batching_option = partial(typer.Option, rich_help_panel="Batching")
cluster_option = partial(typer.Option, rich_help_panel="Cluster")
corruptions_option = partial(typer.Option, rich_help_panel="Corruptions")
data_option = partial(typer.Option, rich_help_panel="Data")
faithfulness_option = partial(typer.Option, rich_help_panel="Faithfulness")
hub_option = partial(typer.Option, rich_help_panel="Hub")
int8_option = partial(typer.Option, rich_help_panel="Int8")
limits_option = partial(typer.Option, rich_help_panel="Limits")
model_option = partial(typer.Option, rich_help_panel="Model")
network_option = partial(typer.Option, rich_help_panel="Network")
optimisation_option = partial(typer.Option, rich_help_panel="Optimisation")
output_option = partial(typer.Option, rich_help_panel="Output")
run_option = partial(typer.Option, rich_help_panel="Run")
saliency_option = partial(typer.Option, rich_help_panel="Saliency")
source_option = partial(typer.Option, rich_help_panel="Source")
timing_option = partial(typer.Option, rich_help_panel="Timing")
verification_option = partial(typer.Option, rich_help_panel="Verification")

PREPROCESSING = "Preprocessing, if the weights do not record it"
PANELS = (  # what goes in, what is done with it, and what comes out
    "Data", "Source", "Cluster", "Model", PREPROCESSING, "Augmentation", "Optimisation", "Saliency", "Attention",
    "Faithfulness", "Corruptions", "Int8", "Verification", "Network", "Batching", "Limits", "Hub", "Timing", "Run", "Output",
)  # fmt: skip
