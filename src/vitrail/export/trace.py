"""Trace a model by ``torch.export`` with a dynamic batch size and, optionally, dynamic height and width."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from vitrail.errors import VitrailError
from vitrail.export.graph import Graph, following
from vitrail.models.build import Model
from vitrail.models.settings import ViTConfig

MOST = 2**12  # rows or columns of the grid
SMALLEST = 32  # pixels, height or width


def traced(model: Model, dynamic: bool = False) -> ExportedProgram:
    """Trace the graph from images to logits. It shares the model's weights."""
    graph = Graph(following(model) if dynamic else model).eval()
    example = torch.zeros(2, *model.config.image, model.config.channels, dtype=torch.uint8)  # not 1, which would be fixed
    try:
        with torch.no_grad(), quiet():
            program = torch.export.export(graph, (example,), dynamic_shapes=(_open(model, dynamic),))
    except VitrailError:
        raise
    except Exception as error:  # the exporter raises many types, with messages of pages
        raise VitrailError(f"the model cannot be traced by torch.export: {first_line(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains local paths
    return program


def _open(model: Model, dynamic: bool) -> dict[int, Any]:
    sizes: dict[int, Any] = {0: Dim("batch", min=1)}
    if dynamic and isinstance(model.config, ViTConfig):
        down, across = model.config.stride
        sizes |= {1: down * Dim("rows", min=1, max=MOST), 2: across * Dim("columns", min=1, max=MOST)}
    elif dynamic:
        sizes |= {1: Dim("height", min=SMALLEST), 2: Dim("width", min=SMALLEST)}
    return sizes


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress torch's warnings about deprecated classes that its own exporter uses."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)
        yield


def first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
