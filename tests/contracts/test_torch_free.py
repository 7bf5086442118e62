"""Commands and functions that need no torch do not import it."""

import subprocess
import sys

import pytest

from tests.cli.commands import COMMANDS

TORCH_FREE_COMMANDS = [
    ["--help"],
    ["--version"],
    *([*command.split(), "--help"] for command in COMMANDS),
    ["inspect", "B/16"],
    ["inspect", "R50+B/16", "--json"],
    ["plan", "paper-jft", "--model", "H/14"],
]


@pytest.mark.parametrize("arguments", TORCH_FREE_COMMANDS, ids=" ".join)
def test_the_command_answers_without_torch(arguments: list[str]) -> None:
    script = (
        "import sys; from vitrail.cli.main import run; code = run(sys.argv[1:]); "
        "assert code == 0, code; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_settings_and_costs_need_no_torch() -> None:
    script = "import sys, vitrail; vitrail.cost(vitrail.variant('B/16')); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
