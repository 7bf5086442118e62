"""The ids of the images and categories of a COCO file, by which results are submitted and evaluated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from vitrail.data.sources.coco.json_stream import JsonStream
from vitrail.errors import VitrailError, first_line

MAX_NAMED = 3  # classes in a sentence


@dataclass(frozen=True)
class CocoIds:
    """The ids of a COCO file, which may be numbers or text."""

    path: Path
    images: dict[str, list[tuple[tuple[str, ...], Any]]]  # by the last part of the name: all parts of each, and its id
    categories: dict[str, Any]  # by name

    def image_ids(self, files: Sequence[str]) -> list[Any]:
        """Return the id of each file: of several images of its name, of the one with most folders in common."""
        ids, first = [], dict[Any, str]()
        for file in files:
            parts = PurePath(file).parts
            found = [(len(each), number) for each, number in self.images.get(parts[-1], ()) if parts[-len(each) :] == each]
            longest = [number for length, number in found if length == max(found)[0]]
            if len(longest) != 1:
                reason = "is not an image" if not longest else "could be several images"
                raise VitrailError(f"{file} {reason} of {self.path}; name the COCO file that lists it, or leave the image out")
            if (other := first.setdefault(longest[0], file)) != file:
                raise VitrailError(f"{other} and {file} are the same image of {self.path}; leave one of them out")
            ids.append(longest[0])
        return ids

    def category_ids(self, class_names: Sequence[str]) -> list[Any]:
        """Return the id of each class, None for one that the file does not have."""
        ids = [self.categories.get(name) for name in class_names]
        if all(each is None for each in ids):
            own, theirs = (", ".join(map(repr, [*names][:MAX_NAMED])) for names in (class_names, self.categories))
            raise VitrailError(f"none of the model's classes, such as {own}, is a category of {self.path}, which has {theirs}")
        return ids

    def notes(self, class_names: Sequence[str], num_images: int) -> Iterator[str]:
        """Say what results with these ids lack."""
        if absent := [name for name in class_names if name not in self.categories]:
            named = ", ".join(absent[:MAX_NAMED]) + (" ..." if len(absent) > MAX_NAMED else "")
            yield f"{self.path} has no category for {len(absent)} of the model's classes, whose boxes are left out: {named}"
        total = sum(map(len, self.images.values()))
        if num_images < total:
            yield f"{num_images:,} of the {total:,} images of {self.path} are predicted; metrics count the others as empty"


def read_coco_ids(path: Path) -> CocoIds:
    """Read the ids of a COCO file."""
    images: dict[str, list[tuple[tuple[str, ...], Any]]] = {}
    categories: dict[str, Any] = {}
    try:
        with open(path, "rb") as file:
            for key, elements in JsonStream(path, file).members():
                for value, _, _ in elements or () if key in ("images", "categories") else ():
                    if key == "images":
                        parts = PurePath(value["file_name"].replace("\\", "/")).parts
                        images.setdefault(parts[-1], []).append((parts, value["id"]))
                    elif (other := categories.setdefault(value["name"], value["id"])) != value["id"]:
                        raise VitrailError(f"{path} has two categories named {value['name']!r}, {other} and {value['id']}")
    except OSError as error:
        raise VitrailError(f"{path} cannot be read: {error.strerror or first_line(error)}") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        raise VitrailError(f"{path} has images or categories without an id and a name; is it a COCO file?") from None
    if not images or not categories:
        raise VitrailError(f"{path} has no images and categories with ids; name the COCO file with the annotations")
    return CocoIds(path, images, categories)
