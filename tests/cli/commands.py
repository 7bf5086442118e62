"""What the command line offers, read from itself."""

import re

from vitrail.cli.main import app

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback]


def options(command: str) -> list[str]:
    """The long options that ``vitrail COMMAND --help`` lists."""
    from typer.testing import CliRunner

    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    return sorted(set(re.findall(r"(--[a-z][a-z-]*)", shown)) - {"--help"})
