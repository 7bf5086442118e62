"""Run a page of the docs: its snippets and commands one after the other, in one process and one folder.

Pages show what people would type. Three things make that quick enough for a test: training commands are cut to a few steps
of a small model, fewer ``panes`` are drawn, and the checkpoints that pages name are stand-ins: small, but with the layout of
the published files and for images of their size.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import nn

import vitrail
from vitrail.cli.main import run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FEW = ["--set", "steps=2", "--set", "schedule.warmup=0"]
SMALL = ["--set", "model.depth=2", "--set", "model.width=48", "--set", "model.mlp=96"]
SHORTER = {"train": [*FEW, *SMALL], "pretrain": [*FEW, *SMALL], "finetune": FEW}
FEWER = {"panes": "panes:count=200"}
CLASSES = {"bag": 8, "boot": 9, "shirt": 6, "trousers": 1}  # class indices in fashion


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``line`` is the number of its first line."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    fences = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page, text[: found.start(2)].count("\n") + 1, found[1], found[2]) for found in fences]


def commands(block: Block) -> list[str]:
    """Return the commands of an ``sh`` block, without comments; blocks that show output are ``text``."""
    lines = block.text.splitlines() if block.language == "sh" else []
    return [line for line in (line.split(" #")[0].strip() for line in lines) if line]


def tell(page: Path) -> None:
    """Run a page in the current folder; a traceback names the page's own line."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        for line in commands(block):
            if line.startswith("vitrail "):
                assert run(shortened(shlex.split(line)[1:])) == 0, line


def shortened(words: list[str]) -> list[str]:
    """Shorten a command that takes minutes to seconds."""
    words = [FEWER.get(word, word) for word in words]
    if words[0] not in SHORTER or "--print-recipe" in words:
        return words
    if "--minutes" in words:
        index = words.index("--minutes")
        words = words[:index] + words[index + 2 :]
    return [*words, *SHORTER[words[0]]]


def furnish(folder: Path) -> None:
    """Create what the pages assume: labelled ``photos``, two runs on them, and published checkpoints."""
    source = vitrail.pictures("fashion").train
    for name, label in CLASSES.items():
        (folder / "photos" / name).mkdir(parents=True)
        for number, index in enumerate((source.labels == label).nonzero()[0][:24]):
            pixels = np.asarray(source.content(int(index)))
            Image.fromarray(pixels[..., 0]).convert("RGB").resize((64, 64)).save(folder / "photos" / name / f"{number:03}.jpg")
    for name in ("mine", "other"):
        words = ["train", str(folder / "photos"), "--out", str(folder / "runs" / name), "--set", f"seed={len(name)}"]
        assert run(shortened(words)) == 0
    stand_in(folder / "vit_small_patch16_224.safetensors", "timm", "exact")
    stand_in(folder / "ViT-B_16.npz", "official", "tanh")


def stand_in(file: Path, origin: Literal["timm", "official"], gelu: str) -> None:
    model = vitrail.build("mu/16", gelu=gelu, resize=origin)
    nn.init.normal_(model.get_parameter("head.weight"))  # new heads are zero, and any two models would predict the same
    vitrail.save(model, file, format=origin)
