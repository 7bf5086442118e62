"""The log of a run is read also while it grows, and after its process was killed in the middle of a line."""

from pathlib import Path

import pytest

from vitrail.training.run import Run
from vitrail.training.run_log import LogTail, parse_step


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_an_incomplete_or_damaged_line_is_skipped(run: Run) -> None:
    run.log_path.write_text(
        '{"step": 1, "loss": 2}\n{"step": 2, "lo\n\nwhat\n[3]\n{"loss": 2}\n{"step": 3, "loss": 1}\n{"step": 4'
    )
    assert run.log_rows() == [{"step": 1, "loss": 2}, {"step": 3, "loss": 1}]
    run.truncate_log(2)
    assert run.log_path.read_text() == '{"step": 1, "loss": 2}\n'


def test_a_run_without_a_log_has_no_rows(run: Run) -> None:
    run.truncate_log(3)
    assert run.log_rows() == []
    assert run.logged_validation(3) == {}
    assert not run.log_path.exists()


def test_truncating_keeps_every_digit(run: Run) -> None:
    run.log({"step": 1, "loss": 0.1 + 0.2, "grad_norm": "nan", "lr": 5e-324})
    run.log({"step": 1, "validation": {"loss": float("nan"), "top1": 1e22}})
    before = run.log_path.read_bytes()
    run.log({"step": 2, "loss": 1.0})
    run.truncate_log(1)
    assert run.log_path.read_bytes() == before


def test_the_validation_of_a_step_is_what_is_finite_of_it(run: Run) -> None:
    for step in (1, 2):
        run.log({"step": step, "loss": 1.0})
        run.log({"step": step, "validation": {"loss": float("nan"), "knn": "nan", "top1": step / 4}})
    assert run.logged_validation(2) == {"top1": 0.5}
    assert run.logged_validation(3) == {}


def test_the_step_is_found_without_parsing_the_line() -> None:
    assert parse_step(b'{"step": 12, "loss": 1.5}') == 12
    assert parse_step(b'{"step": 12}') == 12
    assert parse_step(b'{"loss": 1.5, "step": 12}') is None
    assert parse_step(b"") is None


def test_only_new_bytes_are_read_and_a_truncated_log_is_read_again(run: Run) -> None:
    for step in range(1, 7):
        run.log({"step": step, "loss": 1.0})
    tail = LogTail(run.log_path)
    assert len(tail.read_new_lines()) == 6
    assert tail.read_new_lines() == []
    run.log({"step": 7, "loss": 1.0})
    assert tail.read_new_lines() == [b'{"step": 7, "loss": 1.0}']
    run.truncate_log(4)  # another file, a shorter one
    assert len(tail.read_new_lines()) == 4
    run.log({"step": 5, "loss": 1.0})
    assert len(tail.read_new_lines()) == 1
    with open(run.folder / "log.jsonl", "r+") as file:
        file.truncate(25)  # the same file
    assert tail.read_new_lines() == [b'{"step": 1, "loss": 1.0}']
