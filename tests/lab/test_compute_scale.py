"""Sizes of the three families, matched in compute."""

from tests.lab.made import made
from vitrail.lab.compute_scale import PAPER, SIZES, tell, trials
from vitrail.lab.experiment import Asked, by


def test_at_each_size_the_families_have_like_compute() -> None:
    groups = by(made(trials(Asked("fashion")), lambda of: 0.5), "size")
    for (_,), rows in groups.items():
        macs = {row.macs for row in rows}
        assert len({row.of["family"] for row in rows}) == 3
        assert max(macs) / min(macs) < 1.1
    flops = [rows[0].flops for rows in groups.values()]
    assert len(groups) == len(SIZES)
    assert flops == sorted(flops)


def test_compute_is_six_operations_a_multiply_add_and_picture() -> None:
    (row, *_) = made(trials(Asked("fashion")), lambda of: 0.5)
    assert row.flops == 6 * row.macs * row.batch * row.steps


def test_numbers_of_table_6() -> None:
    assert PAPER["ViT-H/14"] == (14, 4262, 88.08)
    assert PAPER["R50x1"][1:] == (50, 77.54)
    assert PAPER["R50x1+L/16"] == (7, 859, 86.60)


def test_the_best_family_is_told_for_each_size() -> None:
    asked = Asked("fashion")
    answer = tell(asked, made(trials(asked), lambda of: 0.6 if of["family"] == "hybrid" else 0.5)).answer
    assert answer.count("hybrid (60.0%), clearly ahead of") == 3
