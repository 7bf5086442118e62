"""A run chooses DDP or FSDP2 and its micro-batch by the free memory, as ``vitrail plan`` does."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.planning.measure_memory import WIDE, recipe
from vitrail.errors import VitrailError
from vitrail.models.masking_config import Masking
from vitrail.models.variants import variant
from vitrail.planning.accelerators import GB, get_accelerator
from vitrail.planning.memory_estimate import compute_model_costs, estimate_memory
from vitrail.planning.plan import Cluster, make_plan
from vitrail.planning.strategy import MEMORY_FRACTION
from vitrail.recipes.recipe import Optim, Recipe
from vitrail.recipes.task_config import MaskedImage
from vitrail.training.parallel import fit_to_memory
from vitrail.training.process_group import ProcessGroup

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LARGE = recipe(variant("L/16"), 64)


@dataclass(frozen=True)
class Ranks(ProcessGroup):
    """Ranks that all have the same free memory, except for the last, which may have less."""

    free: int | None = None
    least: int | None = None

    def free_memory(self, device: torch.device) -> int | None:
        return self.free

    def gather(self, *values: float) -> list[list[float]]:
        last = values if self.least is None else [self.least]
        return [*[list(values)] * (self.world_size - 1), list(last)]


def fitted(settings: Recipe, free: int | None, world_size: int = 1, device: torch.device = CPU) -> Recipe:
    return fit_to_memory(settings, device, Ranks(world_size=world_size, free=free))


def free_for(settings: Recipe, images: int, micro_batches: int = 1) -> int:
    """The free memory with which one process can compute so many images at a time, and no more."""
    memory = estimate_memory(settings, compute_model_costs(settings), "single", 1, images, micro_batches)
    return int(memory.total / MEMORY_FRACTION) + 1


@pytest.mark.parametrize(
    ("parallel", "free", "expected"),
    [("auto", 2**40, "ddp"), ("auto", 2**32, "fsdp"), ("auto", None, "ddp"), ("ddp", 2**40, "ddp"), ("fsdp", 2**40, "fsdp")],
)
def test_models_that_do_not_fit_are_sharded(parallel: Any, free: int | None, expected: str) -> None:
    assert fitted(replace(LARGE, parallel=parallel), free, 2).parallel == expected


def test_the_rank_with_the_least_memory_decides_for_all() -> None:
    assert fit_to_memory(LARGE, CPU, Ranks(world_size=2, free=2**40, least=2**32)).parallel == "fsdp"
    with pytest.raises(VitrailError, match=r"and 1\.0 GiB are free"):
        fit_to_memory(LARGE, CPU, Ranks(world_size=2, free=2**40, least=2**30))


@pytest.mark.parametrize(("images", "expected"), [(64, None), (63, 32), (32, 32), (31, 16), (1, 1)])
def test_a_batch_that_does_not_fit_is_halved(images: int, expected: int | None) -> None:
    settings = recipe(WIDE, 64)
    assert fitted(settings, free_for(settings, images)).micro_batch_size == expected


def test_the_micro_batch_stays_open_where_memory_is_unknown_or_a_step_can_be_retried() -> None:
    settings = recipe(WIDE, 64)
    little = free_for(settings, 16)
    assert fitted(settings, None) == fitted(settings, little, device=GPU) == settings
    assert fitted(settings, little, 2, GPU).micro_batch_size == 8  # of 32: a rank cannot retry while the others wait
    assert fitted(replace(settings, micro_batch_size=50), little).micro_batch_size == 50


@pytest.mark.parametrize(
    ("changes", "change"),
    [
        ({"ema_decay": 0.999}, "smaller"),
        ({"optim": Optim(name="sgd")}, "larger"),
        ({"optim": Optim(name="sgd", momentum=0.0)}, "larger"),
        ({"optim": Optim(name="muon")}, "larger"),
        ({"optim": Optim(trainable="head")}, "larger"),
        ({"precision": "bfloat16"}, "larger"),
        ({"activation_checkpointing": True}, "larger"),
        ({"model": variant("B/16", classes=0), "task": MaskedImage(Masking("mae", 0.75, decoder_depth=2))}, "larger"),
    ],
    ids=["ema", "sgd", "no momentum", "muon", "head", "bfloat16", "activation checkpointing", "mae"],
)
def test_what_a_recipe_saves_or_adds_changes_its_micro_batch(changes: dict[str, Any], change: str) -> None:
    settings = recipe(variant("B/16", classes=10), 64)
    full = free_for(settings, 16)  # just enough for 16 images
    short = full - 2**20  # and for 8 only
    assert (fitted(settings, full).micro_batch_size, fitted(settings, short).micro_batch_size) == (16, 8)
    if change == "smaller":
        assert fitted(replace(settings, **changes), full).micro_batch_size == 8
    else:
        assert (fitted(replace(settings, **changes), short).micro_batch_size or 64) >= 16


RECIPES: dict[str, Callable[[], Recipe]] = {
    "S/16": lambda: recipe(variant("S/16"), 4096),
    "L/16": lambda: recipe(variant("L/16"), 64),
    "ema": lambda: recipe(variant("L/16"), 512, ema_decay=0.99),
    "muon": lambda: recipe(variant("L/16"), 512, optim=Optim(name="muon")),
    "activation checkpointing": lambda: recipe(variant("g/14"), 64, activation_checkpointing=True),
    "g/14": lambda: recipe(variant("g/14"), 64),
    "fsdp": lambda: recipe(variant("B/16"), 512, parallel="fsdp"),
    "micro-batch": lambda: recipe(variant("B/16"), 512, micro_batch_size=5),
    "bfloat16": lambda: recipe(variant("H/14"), 256, precision="bfloat16"),
    "resnet": lambda: recipe(variant("R50x1"), 2048),
}


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("name", RECIPES)
def test_a_plan_and_a_run_agree(name: str, world_size: int) -> None:
    settings = RECIPES[name]()
    for gigabytes in (12, 24, 80):
        gpu = replace(get_accelerator("A100"), memory=gigabytes * GB)
        plan = make_plan(settings, Cluster(1, world_size, gpu))
        if not plan.strategy_plan.fits and settings.micro_batch_size is None:
            with pytest.raises(VitrailError, match="training on one image takes about"):
                fitted(settings, gpu.memory, world_size)
            continue
        run = fitted(settings, gpu.memory, world_size)
        assert run.parallel == (settings.parallel if world_size == 1 else plan.strategy_plan.strategy)
        assert (run.micro_batch_size or plan.per_rank_batch) == plan.strategy_plan.micro_batch_size


def test_a_model_that_does_not_fit_is_refused_with_both_numbers_and_what_would_fit() -> None:
    with pytest.raises(
        VitrailError, match=r"one image takes about .* GiB and 0\.0 GiB are free; try a smaller model or image size"
    ):
        fitted(LARGE, 1000)
    settings = recipe(variant("L/16", image=1024), 8)
    checkpointed = replace(settings, activation_checkpointing=True)
    free = free_for(checkpointed, 1, micro_batches=2)
    with pytest.raises(VitrailError, match=r"are free; try activation_checkpointing=true$"):
        fitted(settings, free)
    assert fitted(checkpointed, free).micro_batch_size == 1
    with pytest.raises(VitrailError, match=r"try parallel=fsdp$"):
        fitted(replace(LARGE, parallel="ddp"), 4 * 2**30, 4)
    assert fitted(replace(LARGE, parallel="fsdp"), 4 * 2**30, 4).parallel == "fsdp"


def test_memory_that_torch_has_cached_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 400)
    assert ProcessGroup().free_memory(GPU) == 1300
