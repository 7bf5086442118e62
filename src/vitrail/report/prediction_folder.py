"""A folder with a file for the prediction of each image, written whole or not at all, and the request as ``_predict.json``.

The same request resumes: files that are there are kept. Several processes each write a part of the files; each has a lock, so
that what a killed one has left is overwritten.
"""

import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vitrail.errors import VitrailError
from vitrail.io import atomic_write, file_lock

REQUEST_FILE = "_predict.json"


@dataclass(frozen=True)
class PredictionFolder(ABC):
    """The predictions for some files. ``names`` are the paths of theirs in the folder, without a suffix."""

    folder: Path
    files: Sequence[str]
    names: Sequence[str]
    class_names: Sequence[str]

    noun: ClassVar[str]  # what is written

    @abstractmethod
    def paths(self, index: int) -> list[Path]:
        """Return what is written for a file, the last one at the end."""

    @abstractmethod
    def write(self, index: int, prediction: Any) -> None:
        """Write the prediction for a file."""

    def class_files(self) -> dict[str, str]:
        """Return files that say what the classes are, as text by name."""
        return {}

    def start(self, request: dict[str, Any]) -> None:
        """Create the folder, or resume it if the request is the same."""
        path, noun = self.folder / REQUEST_FILE, self.noun
        if not self.folder.parent.is_dir() or (self.folder.exists() and not self.folder.is_dir()):
            raise VitrailError(f"{noun} need a folder, in one that exists, got {self.folder}; try {self.folder.name}-{noun}")
        self.folder.mkdir(exist_ok=True)
        if not path.exists():
            if foreign := next((name for name in os.listdir(self.folder) if not name.startswith(("_", "."))), None):
                raise VitrailError(
                    f"{noun} need a folder of their own, got {self.folder} with {foreign} in it; name a new one, such as "
                    f"{self.folder.name}-predicted"
                )
            atomic_write(path, json.dumps(request, indent=1) + "\n")
        previous = json.loads(path.read_text())
        if different := [name for name in {**previous, **request} if previous.get(name) != request.get(name)]:
            raise VitrailError(
                f"{self.folder} was started with another {' and '.join(different)}; name another folder, or repeat the same "
                "request"
            )
        for name, content in self.class_files().items():
            atomic_write(self.folder / name, content)

    def lock(self, rank: int = 0) -> AbstractContextManager[None]:
        """Keep other processes from writing the files of this rank."""
        busy = VitrailError(f"another process is writing {self.noun} to {self.folder}; wait for it, or name another folder")
        return file_lock(self.folder / f".lock-{rank}", busy)

    def pending(self, rank: int = 0, world_size: int = 1) -> list[int]:
        """Return the indices of the files of this process for which not everything is there yet."""
        own = range(rank, len(self.files), world_size)
        return [index for index in own if not all(path.is_file() for path in self.paths(index))]


def output_names(files: Sequence[str]) -> list[str]:
    """Return a name for what is written for each file, without a suffix: the file's own if those of all files differ, else its
    path below the folder of all; and with the file's suffix if two files differ by nothing else."""
    paths = [Path(os.path.abspath(file)) for file in files]
    if len({path.stem.casefold() for path in paths}) == len(paths):
        return [path.stem for path in paths]
    root = os.path.commonpath([path.parent for path in paths])
    below = [path.relative_to(root) for path in paths]
    counts = Counter(str(path.with_suffix("")).casefold() for path in dict.fromkeys(below))
    return [str(path if counts[str(path.with_suffix("")).casefold()] > 1 else path.with_suffix("")) for path in below]
