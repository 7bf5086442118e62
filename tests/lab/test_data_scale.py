"""Training sets grow, validation and test stay the same, and crossings are found."""

from itertools import pairwise

import numpy as np

from tests.lab.made import made
from vitrail.data.sources.open import pictures
from vitrail.lab.data_scale import PAPER, SETS, amounts, tell, trials
from vitrail.lab.experiment import Asked
from vitrail.lab.trial import Row
from vitrail.models.cost import cost
from vitrail.report.drawing import Drawing


def test_sizes_are_geometrically_spaced_up_to_all_images() -> None:
    assert amounts(Asked("fashion")) == [140, 561, 2247, 9000]
    assert amounts(Asked("panes:count=6400,size=16")) == [100, 400, 1600, 6400]
    first, *_, last = found = amounts(Asked("panes:count=108000,size=16"))
    assert (first, last) == (500, 108000)
    assert len({round(high / low, 1) for low, high in pairwise(found)}) == 1
    assert amounts(Asked("panes:count=40,size=16")) == [30, 33, 36, 40]


def test_validation_and_test_are_the_same_images_for_every_size() -> None:
    for data in ("fashion", "panes:count=200,size=16"):
        names = {job.of["count"]: job.recipe.data for job in trials(Asked(data))}
        opened = [pictures(name) for name in names.values()]
        assert [len(found.train) for found in opened] == list(names)
        for found in opened[1:]:
            for ours, theirs in ((found.validation, opened[0].validation), (found.test, opened[0].test)):
                assert len(ours) == len(theirs)
                assert np.array_equal(ours.content(3), theirs.content(3))


def test_families_have_equal_compute_and_equal_steps() -> None:
    found = trials(Asked("fashion"))
    assert len({(job.recipe.steps, job.recipe.batch) for job in found}) == 1
    macs = {cost(job.recipe.model).macs for job in found}
    assert max(macs) / min(macs) < 1.05


def test_sizes_of_less_than_one_epoch_are_named() -> None:
    options = Asked("fashion")
    whole, short = ([job.lasting(factor) for job in trials(options)] for factor in (1, 0.1))
    long, brief = (" ".join(map(str, tell(options, made(found, lambda of: 0.5)).parts)) for found in (whole, short))
    assert "less than one epoch" not in long
    assert "Each run draws 6,400 images, less than one epoch of 9,000" in brief


def test_the_paper_s_curves_are_plotted_and_cross() -> None:
    options = Asked("fashion")
    ours, theirs = (part for part in tell(options, made(trials(options), lambda of: 0.5)).parts if isinstance(part, Drawing))
    assert "140" in ours.svg()
    assert all(words in theirs.svg() for words in ("303 M", "ViT-L/16, 14 M: 85.15%"))
    few, _, many = (PAPER["ViT-L/16"][count] - PAPER["ViT-B/16"][count] for count in SETS)
    assert few < 0 < many


def _answered(lead: dict[int, float]) -> tuple[str, dict[str, list[tuple[int, int]]]]:
    options = Asked("fashion")
    rows: list[Row] = made(trials(options), lambda of: 0.5 + (lead[of["count"]] if of["family"] == "ViT" else 0.0))
    result = tell(options, rows)
    return result.answer, result.numbers["crossings"]


def test_it_names_the_sizes_between_which_curves_cross() -> None:
    answer, crossed = _answered({140: -0.2, 561: -0.1, 2247: 0.1, 9000: 0.2})
    assert crossed["ViT and ResNet"] == [(561, 2247)]
    assert "The curves of ViT and ResNet cross between 561 and 2,247 images" in answer
    assert "chance" not in answer
    answer, crossed = _answered({140: 0.0, 561: -0.1, 2247: 0.1, 9000: 0.2})
    assert crossed["ViT and ResNet"] == [(561, 2247)]
    answer, crossed = _answered(dict.fromkeys((140, 561, 2247, 9000), -0.1))
    assert crossed["ViT and ResNet"] == []
    assert (
        "The curves of ViT and ResNet do not cross (ViT minus ResNet: -10.0 ± 0.0 points, significant, with 140 images"
        in answer
    )
