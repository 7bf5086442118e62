"""Class names, and those of weights that do not record them: of a file that the user gives, or ImageNet's. Torch-free.

``imagenet_classes.txt`` has the 1,000 classes of ILSVRC 2012 in their usual order: the synset of WordNet, which names the
folders of the dataset, and its first word.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from vitrail.errors import VitrailError, first_line

CLASSES_FILE = Path(__file__).with_name("imagenet_classes.txt")
ORIGINS = ("timm", "huggingface", "torchvision", "official")  # whose models with 1,000 classes are ImageNet's
_given_names: list[tuple[str, ...]] = []


def deduplicate(names: Sequence[str]) -> tuple[str, ...]:
    """Make class names unique: of ImageNet's two cranes, the second becomes crane (2)."""
    counts: dict[str, int] = {}
    unique_names = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique_names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return tuple(unique_names)


@cache
def imagenet_synsets() -> tuple[str, ...]:
    return tuple(line.partition(" ")[0] for line in CLASSES_FILE.read_text().splitlines())


@cache
def imagenet_names() -> tuple[str, ...]:
    return deduplicate([line.partition(" ")[2] for line in CLASSES_FILE.read_text().splitlines()])


def is_imagenet(class_names: Sequence[str]) -> bool:
    return len(class_names) == 1000 and tuple(class_names) == imagenet_names()


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read a file with one name per line, or a JSON list."""
    try:
        text = path.expanduser().read_text()
        names = json.loads(text) if text.lstrip().startswith("[") else text.splitlines()
    except (OSError, ValueError) as error:
        raise VitrailError(
            f"--labels must be a file with one name per line or a JSON list, got {path}: {first_line(error)}"
        ) from None
    return tuple(str(name).strip() for name in names)


@contextmanager
def give_class_names(names: tuple[str, ...] | None) -> Iterator[None]:
    """Within it, in every thread, weights that do not record their class names are loaded with these."""
    before = list(_given_names)
    _given_names[:] = [] if names is None else [names]
    try:
        yield
    finally:
        _given_names[:] = before


def assume_class_names(origin: str, classes: int, assumed: list[str]) -> tuple[str, ...] | None:
    """Return the class names of weights that do not record any: the given ones, else ImageNet's where they are usual."""
    if _given_names:
        names = _given_names[0]
        if len(names) != classes:
            raise VitrailError(f"--labels must name the {classes:,} classes of the model, got {len(names):,} names")
        return names
    if classes != 1000 or origin not in ORIGINS:
        return None
    assumed.append("the class names of ImageNet-1k (1,000 classes in its usual order; --labels or model.class_names overrides)")
    return imagenet_names()


def refuse_given_names() -> None:
    """Raise if class names are given for weights that record their own."""
    if _given_names:
        raise VitrailError("the model records its class names; leave --labels out")
