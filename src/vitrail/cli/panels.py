"""Options by the panel of the help page that lists them."""

from functools import partial

import typer

augmentation_option = partial(typer.Option, rich_help_panel="Augmentation")
cluster_option = partial(typer.Option, rich_help_panel="Cluster")
data_option = partial(typer.Option, rich_help_panel="Data")
model_option = partial(typer.Option, rich_help_panel="Model")
optimisation_option = partial(typer.Option, rich_help_panel="Optimisation")
output_option = partial(typer.Option, rich_help_panel="Output")
run_option = partial(typer.Option, rich_help_panel="Run")
timing_option = partial(typer.Option, rich_help_panel="Timing")
