"""Boxes as COCO's results: a list of ``image_id``, ``category_id``, ``bbox`` and ``score``, which pycocotools loads."""

import json
import os
from collections.abc import Sequence
from typing import Any, TextIO


class CocoResultsWriter:
    """Writes the boxes of images as they come. ``category_ids``: of each class, None for one that is left out; ``named``: names
    of images and categories are written too, since their ids are no one else's."""

    def __init__(self, file: TextIO, folder: str, class_names: Sequence[str], category_ids: Sequence[Any], named: bool) -> None:
        self.file, self.folder, self.named = file, folder, named
        self.category_ids = dict(zip(class_names, category_ids, strict=True))
        self.num_boxes = 0
        file.write("[")

    def write(self, path: str, image_id: Any, boxes: Sequence[Any]) -> None:
        """Write the boxes of an image; its name is relative to the folder of the file."""
        for each in boxes:
            category_id = self.category_ids[each.label]
            if category_id is None:
                continue
            left, top, right, bottom = each.box
            bbox = [left, top, right - left, bottom - top]
            result = {"image_id": image_id, "category_id": category_id, "bbox": bbox, "score": each.score}
            if self.named:
                result |= {"file_name": os.path.relpath(path, self.folder), "category_name": each.label}
            self.file.write(f"{',' if self.num_boxes else ''}\n{json.dumps(result)}")
            self.num_boxes += 1

    def finish(self) -> None:
        self.file.write("\n]\n")
