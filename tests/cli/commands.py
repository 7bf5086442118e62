"""Commands and options, read from the command line itself."""

import re

from typer.testing import CliRunner

from vitrail.cli.main import app


def command_names(group: object, before: str = "") -> list[str]:
    """Return the names of all commands: ``inspect``, ``weights show`` ..."""
    found = [before + command.callback.__name__.replace("_", "-") for command in group.registered_commands if command.callback]  # type: ignore[attr-defined]
    for inner in group.registered_groups:  # type: ignore[attr-defined]
        found += command_names(inner.typer_instance, f"{before}{inner.typer_instance.info.name} ")
    return found


COMMANDS = command_names(app)


def help_text(command: str) -> str:
    """Return what ``vitrail COMMAND --help`` prints on a wide terminal."""
    return CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output


def options(command: str) -> list[str]:
    """Return the long options that ``vitrail COMMAND --help`` lists."""
    return sorted(set(re.findall(r"(--[a-z][a-z-]*)", help_text(command))) - {"--help"})
