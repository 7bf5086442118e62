"""A folder of predicted masks: an index PNG per image, at its own size, and a legend, so that it can be read as a dataset.

    NAME.png           value = class index, with the colours of the classes as palette; 16 bits for more than 256 classes
    NAME.overlay.jpg   the mask drawn over its image, if it is asked for
    classes.json       value, name and colour of each class     _predict.json: the request

Each file is written whole or not at all. The same request resumes: masks that are there are kept. Several processes each write
a part of the masks; each has a lock, so that what a killed one has left is overwritten.
"""

import json
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int16
from numpy import ndarray
from PIL import Image

from vitrail.data.band_view import to_view
from vitrail.data.sources.image_like import read_image_like
from vitrail.errors import VitrailError
from vitrail.io import atomic_path, atomic_write, file_lock
from vitrail.plot.class_colours import overlay
from vitrail.plot.mask_image import encode_mask, mask_legend

REQUEST_FILE, LEGEND_FILE = "_predict.json", "classes.json"
OVERLAY_SUFFIX, OVERLAY_QUALITY = ".overlay.jpg", 90


@dataclass(frozen=True)
class MaskFolder:
    """The masks of some files. ``names`` are the paths of their masks in the folder, without ``.png``."""

    folder: Path
    files: Sequence[str]
    names: Sequence[str]
    class_names: Sequence[str]
    overlays: bool = False

    def start(self, request: dict[str, Any]) -> None:
        """Create the folder, or resume it if the request is the same."""
        path = self.folder / REQUEST_FILE
        if not self.folder.parent.is_dir() or (self.folder.exists() and not self.folder.is_dir()):
            raise VitrailError(f"masks need a folder, in one that exists, got {self.folder}; try {self.folder.name}-masks")
        self.folder.mkdir(exist_ok=True)
        if not path.exists():
            if foreign := next((name for name in os.listdir(self.folder) if not name.startswith(("_", "."))), None):
                raise VitrailError(
                    f"masks need a folder of their own, got {self.folder} with {foreign} in it; name a new one, such as "
                    f"{self.folder.name}-predicted"
                )
            atomic_write(path, json.dumps(request, indent=1) + "\n")
        previous = json.loads(path.read_text())
        if different := [name for name in {**previous, **request} if previous.get(name) != request.get(name)]:
            raise VitrailError(
                f"{self.folder} was started with another {' and '.join(different)}; name another folder, or repeat the same "
                "request"
            )
        atomic_write(self.folder / LEGEND_FILE, json.dumps(mask_legend(self.class_names), indent=1) + "\n")

    def lock(self, rank: int = 0) -> AbstractContextManager[None]:
        """Keep other processes from writing the masks of this rank."""
        busy = VitrailError(f"another process is writing masks to {self.folder}; wait for it, or name another folder")
        return file_lock(self.folder / f".lock-{rank}", busy)

    def pending(self, rank: int = 0, world_size: int = 1) -> list[int]:
        """Return the indices of the files of this process whose mask, or its overlay, is not there yet."""
        return [index for index in range(rank, len(self.files), world_size) if not self._is_complete(index)]

    def _is_complete(self, index: int) -> bool:
        return self.mask_path(index).is_file() and (not self.overlays or self._overlay_path(index).is_file())

    def write(self, index: int, mask: Int16[ndarray, "h w"]) -> None:
        """Write the mask of a file, and its overlay; first that, since a file with its mask is complete."""
        path = self.mask_path(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.overlays:
            image = to_view(read_image_like(self.files[index]))
            blended = overlay(np.asarray(image.convert("RGB")), mask)
            with atomic_path(self._overlay_path(index), locked=True) as temporary:
                Image.fromarray(blended).save(temporary, "JPEG", quality=OVERLAY_QUALITY)
        atomic_write(path, encode_mask(mask, len(self.class_names)), locked=True)

    def mask_path(self, index: int) -> Path:
        return self.folder / f"{self.names[index]}.png"

    def _overlay_path(self, index: int) -> Path:
        return self.folder / f"{self.names[index]}{OVERLAY_SUFFIX}"


def mask_names(files: Sequence[str]) -> list[str]:
    """Return a name for the mask of each file, without its suffix: the file's own if those of all files differ, else its path
    below the folder of all; and with the file's suffix if two files differ by nothing else."""
    paths = [Path(os.path.abspath(file)) for file in files]
    if len({path.stem.casefold() for path in paths}) == len(paths):
        return [path.stem for path in paths]
    root = os.path.commonpath([path.parent for path in paths])
    below = [path.relative_to(root) for path in paths]
    counts = Counter(str(path.with_suffix("")).casefold() for path in dict.fromkeys(below))
    return [str(path if counts[str(path.with_suffix("")).casefold()] > 1 else path.with_suffix("")) for path in below]
