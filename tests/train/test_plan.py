"""Plans against what is measured here, against the paper's own numbers, and against themselves."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.distributed.torchrun import environment
from tests.train.weighing import CASES, NARROW, WIDE, most_beside, recipe, standing, started
from vitrail.errors import VitrailError
from vitrail.models.settings import ModelConfig
from vitrail.models.variants import variant
from vitrail.recipes.book import RECIPES
from vitrail.recipes.book import recipe as by_name
from vitrail.recipes.given import Given
from vitrail.train.accelerators import ACCELERATORS, accelerator
from vitrail.train.distributed import chosen
from vitrail.train.held import Held, Weighed, hold, most, weigh
from vitrail.train.plan import PAPER, UTILISATION, Machines, implied, plan
from vitrail.train.recipe import Optim, Recipe
from vitrail.train.team import Team

ROOT = Path(__file__).parents[2]
IMAGENET = Given("DATA", 1_281_167, 1000, None, 3)
TABLE_6 = [("B/32", 7, 55), ("B/16", 7, 224), ("L/32", 7, 196), ("L/16", 7, 783), ("L/16", 14, 1567), ("H/14", 14, 4262)]
STANDING = ("weights", "gradients", "moments", "average")
MODELS = pytest.mark.parametrize("model", [NARROW, WIDE], ids=["narrow", "wide"])


def beside(held: Held) -> int:
    """What a step needs at most beyond weights, moments and average."""
    return held.total - held.weights - held.moments - held.average


@MODELS
@pytest.mark.parametrize(
    "changes",
    [
        {"optim": Optim()},
        {"optim": Optim(kind="sgd")},
        {"optim": Optim(kind="sgd", momentum=0.0), "ema": 0.9},
        {"optim": Optim(kind="muon"), "ema": 0.9},
        {"optim": Optim(train="head")},
        {"optim": Optim(kind="muon", train="blocks", blocks=2)},
    ],
    ids=["adamw", "sgd", "no momentum", "muon", "head", "blocks"],
)
def test_weights_gradients_moments_and_average_are_the_tensors_to_the_byte(model: ModelConfig, changes: Any) -> None:
    settings = recipe(model, 4, **changes)
    held = hold(settings, weigh(settings), "alone", 1, 4)
    assert standing(started(settings)) == {name: getattr(held, name) for name in STANDING}


@MODELS
@pytest.mark.parametrize("pictures", [2, 11])
@pytest.mark.parametrize(
    "changes",
    [{}, {"recompute": True}, {"precision": "bfloat16"}, {"optim": Optim(kind="muon"), "ema": 0.9}],
    ids=["float32", "recompute", "bfloat16", "muon"],
)
def test_a_step_in_two_pieces_holds_what_is_said(model: ModelConfig, pictures: int, changes: dict[str, Any]) -> None:
    """Within 15 %. The first piece's gradients are there when the second's activations are."""
    settings = recipe(model, 2 * pictures, micro=pictures, **changes)
    held = hold(settings, weigh(settings), "alone", 1, pictures, pieces=2)
    more = pictures * model.channels * model.image[0] * model.image[1] * 4  # the pictures of the other piece
    assert beside(held) + more == pytest.approx(most_beside(started(settings), settings), rel=0.15)


@MODELS
@pytest.mark.parametrize("pictures", [3, 16])
def test_in_one_piece_gradients_come_as_activations_go(model: ModelConfig, pictures: int) -> None:
    settings = recipe(model, pictures)
    held = hold(settings, weigh(settings), "alone", 1, pictures)
    measured = most_beside(started(settings), settings)
    assert measured <= beside(held)
    assert measured == pytest.approx(max(held.activations + held.working, held.gradients), rel=0.15)


@cache
def weighed() -> list[dict[str, Any]]:
    """By two processes over gloo."""
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "tests.train.weighing"]
    done = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(found) == len(CASES)
    return found


def planned(found: dict[str, Any]) -> Held:
    model = NARROW if found["width"] == NARROW.width else WIDE
    settings = recipe(model, 8, parallel=found["parallel"], micro=found["micro"], ema=0.9)
    pictures = found["micro"] or 4
    return hold(settings, weigh(settings), found["parallel"], 2, pictures, 4 // pictures)


def test_the_shards_of_two_ranks_are_what_is_said() -> None:
    """To the byte together, and each to a thousandth, since a tensor is cut between rows."""
    for found in weighed():
        held = planned(found)
        times = 1 if found["parallel"] == "fsdp" else 2
        for name in STANDING:
            ranks = [rank[name] for rank in found["ranks"]]
            whole = 4 * weigh(recipe(NARROW if found["width"] == NARROW.width else WIDE, 8)).parameters
            assert sum(ranks) == times * whole * (2 if name == "moments" else 1)
            assert ranks[0] == pytest.approx(getattr(held, name), rel=1e-3)


def test_ranks_hold_no_more_than_is_said() -> None:
    """DDP's buckets were made before the step was weighed. FSDP2 brings blocks together in memory that is not new, so that what
    is weighed is less: at least the activations, and with two pieces whole gradients beside them."""
    for found in weighed():
        held = planned(found)
        for rank in found["ranks"]:
            if found["parallel"] == "ddp":
                assert rank["beside"] + held.gradients == pytest.approx(beside(held), rel=0.125)
            else:
                assert held.summed + 0.9 * held.activations < rank["beside"] < beside(held)


@pytest.mark.parametrize(("model", "epochs", "exaflops"), TABLE_6)
def test_operations_are_those_of_table_6(model: str, epochs: int, exaflops: int) -> None:
    settings = by_name("paper-jft", Given("JFT", 303_000_000, 18_291, None, 3, model=model))
    settings = replace(settings, steps=round(epochs * 303_000_000 / settings.batch))
    made = plan(settings, Machines(64, 8, accelerator("TPUv3-core")))
    assert made.flops / 1e18 == pytest.approx(exaflops, rel=0.03)


def test_table_2_means_a_third_of_the_peak_of_a_tpu_in_every_row() -> None:
    """H/14 0.32, L/16 0.43, L/16 on ImageNet-21k 0.39: plausible, and no two differ by more than a factor of 1.4. Of H/14 the
    epochs are known; of the two that Table 3 has for L/16, the shorter ones would not agree with it."""
    found = [implied(row, accelerator("TPUv3-core")) for row in PAPER]
    assert [round(share, 2) for share in found] == [0.32, 0.43, 0.39]
    assert max(found) / min(found) < 1.4
    assert min(found) <= UTILISATION <= max(found)
    shorter = [
        implied(replace(row, epochs=few), accelerator("TPUv3-core")) for row, few in zip(PAPER, (14, 7, 30), strict=True)
    ]
    assert [round(share, 2) for share in shorter] == [0.32, 0.22, 0.13]


@pytest.mark.parametrize("row", PAPER, ids=lambda row: f"{row.model} {row.data}")
def test_a_plan_gives_the_papers_core_days_back(row: Any) -> None:
    """Within 40 % at the assumed utilisation."""
    gpu = accelerator("TPUv3-core")
    name, classes = ("paper-jft", 18_291) if row.data.startswith("JFT") else ("paper-imagenet21k", 21_843)
    settings = by_name(name, Given(row.data, row.pictures, classes, None, 3, model=row.model))
    settings = replace(settings, steps=round(row.epochs * row.pictures / settings.batch))
    made = plan(settings, Machines(64, 8, gpu))
    assert 1 / 1.4 < made.hours / 24 / row.core_days < 1.4


def test_what_fits_fits_and_one_more_does_not() -> None:
    for changes in ({}, {"optim": Optim(kind="muon")}, {"precision": "bfloat16"}, {"recompute": True}):
        settings = recipe(variant("B/16"), 4096, **changes)
        known, room = weigh(settings), 20e9
        for way in ("alone", "ddp", "fsdp"):
            for pieces in (1, 2):
                count = most(settings, known, way, 4, room, pieces)
                totals = [hold(settings, known, way, 4, b, pieces).total for b in (count, count + 1)]
                assert totals[0] <= room < totals[1]
    assert most(settings, known, "alone", 1, 1e9) == 0  # the weights and moments alone are more


def test_a_batch_is_computed_in_equal_pieces_that_fit() -> None:
    made = plan(by_name("paper-jft", replace(IMAGENET, model="H/14")), Machines(2, 8, accelerator("A100")))
    for fit in made.ways:
        assert fit.fits
        assert fit.held.total <= made.room
        assert (fit.pieces - 1) * fit.micro < made.share <= fit.pieces * fit.micro
        assert fit.most < made.share
    assert made.ways[0].micro < made.ways[1].micro  # less is held of the weights


def test_twice_the_machines_take_half_the_days_at_the_same_cost() -> None:
    settings, gpu = by_name("plain", IMAGENET), accelerator("A100")
    one, two = (plan(settings, Machines(hosts, 8, gpu, price=3.0)) for hosts in (1, 2))
    assert one.days == pytest.approx(2 * two.days)
    assert one.cost == pytest.approx(two.cost) == pytest.approx(3 * one.days * 24 * 8)
    assert plan(settings, Machines(1, 8, gpu, 0.7)).days == pytest.approx(one.days / 2)
    assert one.days == pytest.approx(
        6 * 4.608e9 * 90 * 1_281_167 / (8 * 19.5e12 * UTILISATION) / 86_400, rel=0.01
    )  # by hand, of S/16's 4.608 GMACs


def test_computing_again_costs_a_third_more_time_and_most_of_the_memory_less() -> None:
    plain = by_name("paper-imagenet", IMAGENET)
    kept, again = weigh(plain), weigh(replace(plain, recompute=True))
    assert again.flops / kept.flops == pytest.approx(4 / 3, rel=0.01)
    assert again.kept < kept.kept / 5
    net = by_name("resnet", IMAGENET)
    assert weigh(net) == weigh(replace(net, recompute=True))  # which has no blocks


def test_frozen_weights_need_no_gradients_and_no_way_back() -> None:
    whole = by_name("finetune", IMAGENET)
    head = replace(whole, optim=Optim(train="head"))
    blocks = replace(whole, optim=Optim(train="blocks", blocks=3))
    found: list[Weighed] = [weigh(settings) for settings in (whole, blocks, head)]
    assert found[0].trained > found[1].trained > found[2].trained == 768 * 1000 + 1000
    assert found[0].flops > found[1].flops > found[2].flops
    assert found[2].flops == pytest.approx(2 * found[2].macs, rel=0.01)
    with pytest.raises(VitrailError, match=r"optim\.blocks must be from 1 to 12"):
        weigh(replace(whole, optim=Optim(train="blocks", blocks=13)))


def test_many_ranks_of_fsdp_hold_little_but_what_they_compute() -> None:
    settings = recipe(variant("H/14"), 4096, ema=0.9)
    known = weigh(settings)
    few, many = (hold(settings, known, "fsdp", ranks, 1) for ranks in (2, 4096))
    assert sum(getattr(many, name) for name in STANDING) < 0.001 * sum(getattr(few, name) for name in STANDING)
    same = [name for name in asdict(few) if name not in STANDING]
    assert [getattr(few, name) for name in same] == [getattr(many, name) for name in same]


class Elsewhere(Team):
    """Ranks with so much memory each."""

    def free(self, where: torch.device) -> int:
        return accelerator("T4").memory

    def any(self, fact: bool) -> bool:
        return fact


@pytest.mark.parametrize("name", ["S/16", "L/16", "g/14", "e/14"])
def test_a_plan_takes_the_way_that_the_run_would(name: str) -> None:
    settings = recipe(variant(name), 64)
    made = plan(settings, Machines(1, 4, accelerator("T4")))
    assert made.chosen == chosen("auto", settings.model, torch.device("cpu"), Elsewhere(ranks=4))
    assert plan(replace(settings, parallel="fsdp"), Machines(1, 4, accelerator("T4"))).chosen == "fsdp"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_planned(name: str) -> None:
    made = plan(by_name(name, Given() if name == "demo" else IMAGENET), Machines(1, 8, accelerator("H100")))
    assert made.fit.fits
    assert made.days > 0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"gpu": "A1000"}, "no accelerator is named 'A1000'; did you mean 'A100'"),
        ({"gpu": "abacus"}, "there are A100, A100-40"),
        ({"hosts": 0}, "--hosts must be from 1"),
        ({"gpus": 3}, "batch must be a multiple of the 3 ranks, got 1024; try --set batch=1026"),
        ({"utilisation": 0.0}, "--utilisation must be above 0 and at most 1"),
        ({"utilisation": 1.5}, "--utilisation must be above 0 and at most 1"),
        ({"price": -1.0}, "--price must be dollars an hour"),
        ({"gpu": "V100", "precision": "bfloat16"}, "V100 has no units for bfloat16; try --set precision=float32"),
        ({"steps": 10**18}, "steps times batch must be at most"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_sentence(how: dict[str, Any], words: str) -> None:
    settings: Recipe = by_name("plain", IMAGENET)
    settings = replace(settings, **{name: how[name] for name in ("precision", "steps") if name in how})
    machine = {"hosts": 1, "gpus": 8, **{name: how[name] for name in ("hosts", "gpus", "utilisation", "price") if name in how}}
    with pytest.raises(VitrailError, match=words):
        plan(settings, Machines(gpu=accelerator(how.get("gpu", "A100")), **machine))


def test_names_of_accelerators_are_read_as_people_write_them() -> None:
    assert accelerator("rtx 4090") == accelerator("RTX4090")
    assert accelerator("a100_40") == ACCELERATORS["A100-40"]
    assert all(row.bfloat16 is None or row.bfloat16 >= row.float32 for row in ACCELERATORS.values())
