"""Help that names values as people do: ``--threads N`` and ``RUN... DATA``, not ``<int range>`` and ``{RUN... DATA}...``."""

import itertools
import re
from collections.abc import Sequence
from typing import Any  # typer's own context and parameter types are private

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from vitrail.cli.panels import PANELS

METAVARS = {"int": "N", "int range": "N", "float": "X", "float range": "X", "path": "PATH", "list[int]": "N"}
INVALID = {
    r"Value error, .* is not one of (.*)\.": r"must be one of \1",
    r"Input should be a valid integer.*": "must be a whole number",
    r"Input should be a valid number.*": "must be a number",
    r"Input should be greater than or equal to (.*)": r"must be at least \1",
    r"Input should be less than or equal to (.*)": r"must be at most \1",
}


def invalid_value(message: str, arguments: Sequence[str]) -> str:
    """Say ``--lr must be a number, got 'fast'`` where typer says that an input should be a valid number."""
    match = re.fullmatch(r"Invalid value for '(--[\w-]+)': (.*)", message, re.DOTALL)
    rules = [(pattern, text) for pattern, text in INVALID.items() if match and re.fullmatch(pattern, match[2], re.DOTALL)]
    if match is None or not rules:
        return message
    values = [after for option, after in itertools.pairwise(arguments) if option == match[1]]
    values += [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{match[1]}=")]
    got = f", got {values[-1][:40]!r}" if values else ""
    return f"{match[1]} {re.sub(rules[0][0], rules[0][1], match[2], flags=re.DOTALL)}{got}"


class Command(TyperCommand):
    """A command whose help shows neither Python types nor the brackets of a parser."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _name_values(super().get_params(ctx), ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if isinstance(param, TyperArgument)]
        return ["[OPTIONS]", *(each.display_name_raw if each.required else f"[{each.display_name_raw}]" for each in arguments)]


class Group(TyperGroup):
    """A group of commands with the same help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _name_values(super().get_params(ctx), ctx)


def _name_values(params: Sequence[Any], ctx: Any) -> list[Any]:
    """Give every parameter a name for its value, and order the panels; ``--help`` joins the last one."""
    panel, ordered = None, sorted(params, key=_panel_index)
    for param in ordered:
        if isinstance(param, TyperArgument):
            param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]  # its name and help say what it is
        elif param.name == "help":
            param.metavar, param.rich_help_panel = "", panel
        elif isinstance(param, TyperOption) and param.metavar is None:
            kind = param.display_type(ctx).strip("<>")
            param.metavar = "" if param.is_flag else kind if "|" in kind else METAVARS.get(kind, "NAME")
        panel = getattr(param, "rich_help_panel", None)
    return ordered


def _panel_index(param: Any) -> int:
    """Return the position of a parameter's panel; arguments and options of no panel come first, ``--help`` last."""
    panel = getattr(param, "rich_help_panel", None)
    return len(PANELS) if param.name == "help" else PANELS.index(panel) if panel in PANELS else -1
