"""Amounts grow, what is judged by stays, and lines cross where they do."""

from itertools import pairwise

import numpy as np

from tests.lab.made import made
from vitrail.data.sources.open import pictures
from vitrail.lab.data_scale import PAPER, SETS, amounts, tell, trials
from vitrail.lab.experiment import Asked
from vitrail.lab.trial import Row
from vitrail.models.cost import cost
from vitrail.report.drawing import Drawing


def test_each_amount_is_as_many_times_the_one_before_up_to_all() -> None:
    assert amounts(Asked("fashion")) == [140, 561, 2247, 9000]
    assert amounts(Asked("panes:count=6400,size=16")) == [100, 400, 1600, 6400]
    first, *_, last = found = amounts(Asked("panes:count=108000,size=16"))
    assert (first, last) == (500, 108000)
    assert len({round(high / low, 1) for low, high in pairwise(found)}) == 1
    assert amounts(Asked("panes:count=40,size=16")) == [30, 33, 36, 40]


def test_validation_and_test_are_the_same_pictures_for_every_amount() -> None:
    for data in ("fashion", "panes:count=200,size=16"):
        names = {trial.of["count"]: trial.recipe.data for trial in trials(Asked(data))}
        opened = [pictures(name) for name in names.values()]
        assert [len(found.train) for found in opened] == list(names)
        for found in opened[1:]:
            for ours, theirs in ((found.validation, opened[0].validation), (found.test, opened[0].test)):
                assert len(ours) == len(theirs)
                assert np.array_equal(ours.content(3), theirs.content(3))


def test_families_have_equal_compute_and_as_many_steps() -> None:
    found = trials(Asked("fashion"))
    assert len({(trial.recipe.steps, trial.recipe.batch) for trial in found}) == 1
    macs = {cost(trial.recipe.model).macs for trial in found}
    assert max(macs) / min(macs) < 1.05


def test_amounts_that_no_training_can_see_are_named() -> None:
    asked = Asked("fashion")
    whole, short = ([trial.lasting(factor) for trial in trials(asked)] for factor in (1, 0.1))
    long, brief = (" ".join(map(str, tell(asked, made(found, lambda of: 0.5)).parts)) for found in (whole, short))
    assert "even once" not in long
    assert "Each training draws 6,400 pictures in all, so of 9,000 it has not seen every one, even once" in brief


def test_the_paper_s_lines_stand_beside_ours_and_cross() -> None:
    asked = Asked("fashion")
    ours, theirs = (part for part in tell(asked, made(trials(asked), lambda of: 0.5)).parts if isinstance(part, Drawing))
    assert "140" in ours.svg()
    assert all(words in theirs.svg() for words in ("303 M", "ViT-L/16, 14 M: 85.15%"))
    few, _, many = (PAPER["ViT-L/16"][count] - PAPER["ViT-B/16"][count] for count in SETS)
    assert few < 0 < many


def _answered(lead: dict[int, float]) -> tuple[str, dict[str, list[tuple[int, int]]]]:
    asked = Asked("fashion")
    rows: list[Row] = made(trials(asked), lambda of: 0.5 + (lead[of["count"]] if of["family"] == "ViT" else 0.0))
    told = tell(asked, rows)
    return told.answer, told.numbers["crossings"]


def test_it_tells_between_which_amounts_lines_cross() -> None:
    answer, crossed = _answered({140: -0.2, 561: -0.1, 2247: 0.1, 9000: 0.2})
    assert crossed["ViT and ResNet"] == [(561, 2247)]
    assert "The lines of ViT and ResNet cross between 561 and 2,247 pictures" in answer
    assert "chance" not in answer
    answer, crossed = _answered({140: 0.0, 561: -0.1, 2247: 0.1, 9000: 0.2})
    assert crossed["ViT and ResNet"] == [(561, 2247)]
    answer, crossed = _answered(dict.fromkeys((140, 561, 2247, 9000), -0.1))
    assert crossed["ViT and ResNet"] == []
    assert (
        "The lines of ViT and ResNet do not cross (ViT against ResNet: -10.0 ± 0.0 points, clear, with 140 pictures" in answer
    )
