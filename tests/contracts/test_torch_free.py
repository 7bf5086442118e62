"""Commands and functions that need no torch do not import it."""

import json
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
    ["inspect", "dinov2-s14"],
    ["models"],
    ["models", "--filter", "clip", "--json"],
]
# A fork of a fresh interpreter for each command: as good as a new one, without its start.
SCRIPT = """
import json, os, sys, tempfile
from vitrail.cli.main import run
results = {}
for arguments in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            code = run(arguments)
            sys.stdout.flush()
            os._exit(code or (99 if {"torch", "numpy"} & set(sys.modules) else 0))
        status = os.waitpid(child, 0)[1]
        results[" ".join(arguments)] = os.waitstatus_to_exitcode(status), output.seek(0, os.SEEK_END)
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[int, int]]:
    """Return the exit code of each command, 99 if it imported torch or numpy, and the bytes it printed."""
    command = [sys.executable, "-c", SCRIPT, json.dumps(TORCH_FREE_COMMANDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, tuple[int, int]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("arguments", TORCH_FREE_COMMANDS, ids=" ".join)
def test_the_command_answers_without_torch(arguments: list[str], results: dict[str, tuple[int, int]]) -> None:
    code, printed = results[" ".join(arguments)]
    assert code == 0
    assert printed > 0


def test_settings_and_costs_need_no_torch() -> None:
    script = "import sys, vitrail; vitrail.cost(vitrail.variant('B/16')); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
