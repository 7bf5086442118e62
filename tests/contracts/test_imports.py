"""Imports point downwards only, and rooms of one level do not import each other."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "vitrail"
LEVELS = [
    ["cli"],
    ["studio", "serve"],
    ["web"],
    ["runs", "lab", "bench"],
    ["report", "exporters"],
    ["plot"],
    ["training"],
    ["evaluation"],
    ["inference"],
    ["weights"],
    ["explain"],
    ["tasks"],
    ["planning"],
    ["recipes"],
    ["models"],
    ["layers", "data"],
    ["augment"],
    ["config", "io", "system"],
    ["errors"],
]
RANK = {room: rank for rank, rooms in enumerate(LEVELS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))
ENTRY_POINTS = {"__init__", "__main__"}  # the facade and the module entry point


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imported_modules(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively; write the whole name"
            names = [f"vitrail.{name.name}" for name in node.names] if node.module == "vitrail" else [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        else:
            continue
        found |= {name for name in names if name.split(".")[0] == "vitrail"}
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_downwards(file: Path) -> None:
    room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if room in ENTRY_POINTS:
        return
    assert room in RANK, f"{room} is not a room of the design"
    for module in imported_modules(file):
        other = room_of(module)
        assert other not in ENTRY_POINTS, f"{file} imports the facade"
        inside = other == room
        assert inside or RANK[other] > RANK[room], f"{room} must not import {other}"


def test_torch_stays_out_of_the_torch_free_files() -> None:
    free = [
        "errors.py",
        "config.py",
        "io.py",
        "models/config.py",
        "models/masking_config.py",
        "models/speedup_config.py",
        "models/variants.py",
        "models/cost/__init__.py",
        "models/cost/counter.py",
        "models/cost/masked.py",
        "models/cost/resnet.py",
        "models/cost/token_merging.py",
        "models/cost/vit.py",
        "augment/policy.py",
        "data/preprocess.py",
        "weights/catalogue.py",
        "weights/model_folder.py",
        "training/schedule.py",
        "planning/memory_estimate.py",
        "planning/accelerators.py",
        "planning/plan.py",
        "planning/strategy.py",
        "recipes/context.py",
        "recipes/recipe.py",
        "recipes/demo.py",
        "recipes/small.py",
        "recipes/paper.py",
        "recipes/baselines.py",
        "recipes/registry.py",
        "recipes/task_config.py",
    ]
    for name in free:
        for node in ast.walk(ast.parse((PACKAGE / name).read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(module.split(".")[0] in ("torch", "numpy") for module in modules), name
