"""Training sets grow, validation and test stay the same, and crossings are found."""

from itertools import pairwise

import numpy as np

from tests.lab.fake_results import fake_results
from vitrail.data.sources.open import open_dataset
from vitrail.lab.data_scale import DATASET_SIZES, PAPER, build_result, jobs, subset_sizes
from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.trials import JobResult
from vitrail.models.cost import cost
from vitrail.plot.canvas import Figure


def test_sizes_are_geometrically_spaced_up_to_all_images() -> None:
    assert subset_sizes(ExperimentOptions("fashion")) == [140, 561, 2247, 9000]
    assert subset_sizes(ExperimentOptions("panes:train_size=6400,size=16")) == [100, 400, 1600, 6400]
    first, *_, last = result = subset_sizes(ExperimentOptions("panes:train_size=108000,size=16"))
    assert (first, last) == (500, 108000)
    assert len({round(high / low, 1) for low, high in pairwise(result)}) == 1
    assert subset_sizes(ExperimentOptions("panes:train_size=40,size=16")) == [30, 33, 36, 40]


def test_validation_and_test_are_the_same_images_for_every_size() -> None:
    for data in ("fashion", "panes:train_size=200,size=16"):
        names = {job.condition["count"]: job.recipe.data for job in jobs(ExperimentOptions(data))}
        opened = [open_dataset(name) for name in names.values()]
        assert [len(result.train) for result in opened] == list(names)
        for result in opened[1:]:
            for ours, theirs in ((result.validation, opened[0].validation), (result.test, opened[0].test)):
                assert len(ours) == len(theirs)
                assert np.array_equal(ours.read(3), theirs.read(3))


def test_families_have_equal_compute_and_equal_steps() -> None:
    result = jobs(ExperimentOptions("fashion"))
    assert len({(job.recipe.steps, job.recipe.batch_size) for job in result}) == 1
    macs = {cost(job.recipe.model).macs for job in result}
    assert max(macs) / min(macs) < 1.05


def test_sizes_of_less_than_one_epoch_are_named() -> None:
    options = ExperimentOptions("fashion")
    whole, short = ([job.with_scaled_steps(factor) for job in jobs(options)] for factor in (1, 0.1))
    long, brief = (
        " ".join(map(str, build_result(options, fake_results(result, lambda condition: 0.5)).parts))
        for result in (whole, short)
    )
    assert "less than one epoch" not in long
    assert "Each run draws 6,400 images, less than one epoch of 9,000" in brief


def test_the_paper_s_curves_are_plotted_and_cross() -> None:
    options = ExperimentOptions("fashion")
    ours, theirs = (
        part
        for part in build_result(options, fake_results(jobs(options), lambda condition: 0.5)).parts
        if isinstance(part, Figure)
    )
    assert "140" in ours.to_svg()
    assert all(text in theirs.to_svg() for text in ("303 M", "ViT-L/16, 14 M: 85.15%"))
    few, _, many = (PAPER["ViT-L/16"][count] - PAPER["ViT-B/16"][count] for count in DATASET_SIZES)
    assert few < 0 < many


def _summary_and_crossings(lead: dict[int, float]) -> tuple[str, dict[str, list[tuple[int, int]]]]:
    options = ExperimentOptions("fashion")
    rows: list[JobResult] = fake_results(
        jobs(options), lambda condition: 0.5 + (lead[condition["count"]] if condition["family"] == "ViT" else 0.0)
    )
    result = build_result(options, rows)
    return result.summary, result.numbers["crossings"]


def test_it_names_the_sizes_between_which_curves_cross() -> None:
    summary, crossed = _summary_and_crossings({140: -0.2, 561: -0.1, 2247: 0.1, 9000: 0.2})
    assert crossed["ViT and ResNet"] == [(561, 2247)]
    assert "The curves of ViT and ResNet cross between 561 and 2,247 images" in summary
    assert "chance" not in summary
    summary, crossed = _summary_and_crossings({140: 0.0, 561: -0.1, 2247: 0.1, 9000: 0.2})
    assert crossed["ViT and ResNet"] == [(561, 2247)]
    summary, crossed = _summary_and_crossings(dict.fromkeys((140, 561, 2247, 9000), -0.1))
    assert crossed["ViT and ResNet"] == []
    assert (
        "The curves of ViT and ResNet do not cross (ViT minus ResNet: -10.0 ± 0.0 points, significant, with 140 images"
        in summary
    )
