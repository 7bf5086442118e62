"""Write a model as a ``torch.export`` program, which torch runs without Vitrail at any batch size."""

import io
from pathlib import Path
from typing import Any

import torch

from vitrail.exporters.trace_program import trace_program
from vitrail.inference.export_metadata import EXPORT_METADATA_KEY, dump_metadata
from vitrail.inference.program_predictor import suppress_warnings
from vitrail.models.build import Model


def write_program(model: Model, path: Path, dynamic: bool = False, **options: Any) -> None:
    metadata = dump_metadata(model, to="program", dynamic=dynamic, **options)
    program, buffer = trace_program(model, dynamic), io.BytesIO()
    program._guards_code = []  # torch would evaluate this code on loading; the predictor checks image sizes itself
    with suppress_warnings():
        torch.export.save(program, buffer, extra_files={EXPORT_METADATA_KEY: metadata})
    path.write_bytes(buffer.getbuffer())
