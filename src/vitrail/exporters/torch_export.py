"""Write a model as a ``torch.export`` program, which torch runs without Vitrail at any batch size."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from vitrail.errors import VitrailError, first_line
from vitrail.exporters.export_module import ExportModule, with_dynamic_positions
from vitrail.inference.export_metadata import EXPORT_METADATA_KEY, dump_metadata
from vitrail.inference.program_predictor import suppress_warnings
from vitrail.models.build import get_encoder
from vitrail.models.config import ViTConfig

MAX_GRID_SIDE = 2**12  # rows or columns of the grid
MIN_RESNET_SIDE = 32  # pixels, height or width


def write_program(model: nn.Module, path: Path, dynamic: bool = False, **options: Any) -> None:
    metadata = dump_metadata(model, to="program", dynamic=dynamic, **options)
    program, buffer = trace_program(model, dynamic), io.BytesIO()
    program._guards_code = []  # torch would evaluate this code on loading; the predictor checks image sizes itself
    with suppress_warnings():
        torch.export.save(program, buffer, extra_files={EXPORT_METADATA_KEY: metadata})
    path.write_bytes(buffer.getbuffer())


def trace_program(model: nn.Module, dynamic: bool = False) -> ExportedProgram:
    """Trace the graph from images to logits. It shares the model's weights."""
    module = ExportModule(with_dynamic_positions(model) if dynamic else model).eval()
    dtype = getattr(torch, module.pixel_type)
    config = get_encoder(model).config
    example = torch.zeros(2, *config.image, config.channels, dtype=dtype)  # not 1 image, which would be fixed
    try:
        with torch.no_grad(), suppress_warnings():
            program = torch.export.export(module, (example,), dynamic_shapes=(_dynamic_shapes(model, dynamic),))
    except VitrailError:
        raise
    except Exception as error:  # the exporter raises many types, with messages of pages
        raise VitrailError(f"the model cannot be traced by torch.export: {first_line(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains local paths
    return program


def _dynamic_shapes(model: nn.Module, dynamic: bool) -> dict[int, Any]:
    sizes: dict[int, Any] = {0: Dim("batch", min=1)}
    config = get_encoder(model).config
    if dynamic and isinstance(config, ViTConfig):
        stride_y, stride_x = config.patch_stride
        sizes |= {1: stride_y * Dim("rows", min=1, max=MAX_GRID_SIDE), 2: stride_x * Dim("columns", min=1, max=MAX_GRID_SIDE)}
    elif dynamic:
        sizes |= {1: Dim("height", min=MIN_RESNET_SIDE), 2: Dim("width", min=MIN_RESNET_SIDE)}
    return sizes
