"""Write a model as a ``torch.export`` program, which torch runs without Vitrail at any batch size, and run it."""

import io
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32, UInt8
from numpy import ndarray

from vitrail.errors import VitrailError
from vitrail.export.engine import is_sigmoid, labels_of, tensor
from vitrail.export.harmless import check_harmless
from vitrail.export.session import check_size
from vitrail.export.trace import first_line, quiet, traced
from vitrail.export.travelling import NOTE, note, read_told
from vitrail.models.build import Model


def write_program(model: Model, path: Path, dynamic: bool = False, **export: Any) -> None:
    said = note(model, to="program", dynamic=dynamic, **export)
    program, held = traced(model, dynamic), io.BytesIO()
    program._guards_code = []  # torch would evaluate this code on loading; the predictor checks image sizes itself
    with quiet():
        torch.export.save(program, held, extra_files={NOTE: said})
    path.write_bytes(held.getbuffer())


class ProgramEngine:
    """Predictor that runs a ``torch.export`` program.

    The whole file is in memory; one that might do more than compute is refused before torch reads it.
    """

    name = "program"

    def __init__(self, source: str | Path, threads: int | None = None) -> None:
        self.model = str(source)
        path, notes = Path(source).expanduser(), {NOTE: ""}
        if not path.is_file():
            raise VitrailError(f"{source} does not exist; `vitrail export RUN --to program` writes such a file")
        content = path.read_bytes()
        check_harmless(content, str(source))
        try:
            with quiet():
                self._run = torch.export.load(io.BytesIO(content), extra_files=notes).module()
        except Exception as error:  # a damaged file can fail its reader in any way
            raise VitrailError(f"{source} is damaged: {first_line(error)}") from None
        if threads is not None:
            torch.set_num_threads(threads)
        self.told = read_told(notes[NOTE], str(source))
        self.preprocess = self.told.preprocess
        self.labels = labels_of(self.told.labels, self.told.config.classes)
        self.sigmoid = is_sigmoid(self.told.facts)
        open_size = [None, None] if self.told.export.get("dynamic") else [*self.told.preprocess.image]
        self._size = [*open_size, self.told.config.channels]

    @torch.inference_mode()
    def logits(self, pictures: UInt8[ndarray, "b height width c"]) -> Float32[ndarray, "b k"]:
        check_size(pictures, self._size, self.told)
        return self._run(tensor(pictures))[0].numpy()
