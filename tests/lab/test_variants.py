"""Parameter counts equal those of Table 1, counted as in the paper."""

from vitrail.lab.experiment import ExperimentOptions
from vitrail.lab.variants import PAPER, build_result, pretraining_parameters


def test_the_paper_s_three_are_exact_and_large_has_patches_of_32() -> None:
    assert {name for name, millions in PAPER.items() if round(pretraining_parameters(name) / 1e6) == millions} == {
        "B/16",
        "L/32",
        "H/14",
    }


def test_the_page_has_every_model_with_its_numbers() -> None:
    result = build_result(ExperimentOptions("none"), [])
    (table,) = result.parts
    assert all(f"<td>{name}</td>" in table for name in result.numbers["models"])  # type: ignore[operator]
    assert result.numbers["models"]["B/16"] == {
        "parameters": 86_567_656,
        "pretrained": 86_389_248,
        "macs": 17_563_828_224,
        "paper": 86,
    }
    assert "L/16 has 304.4 M instead of 307 M" in result.summary
