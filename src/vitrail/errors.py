"""Errors for users: one sentence that names a value that would work."""

from collections.abc import Iterable
from difflib import get_close_matches


class VitrailError(ValueError):
    """Invalid input. The command line prints the message as one line and exits with code 2.

    The message may quote names and values from a file, so it is kept printable and short.
    """

    def __init__(self, message: str) -> None:
        plain = printable(message)
        super().__init__(plain if len(plain) < 900 else f"{plain[:600]} ... {plain[-200:]}")


def printable(text: str) -> str:
    """Replace control characters: names from files may contain anything."""
    return "".join(character if character.isprintable() else "?" for character in text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def did_you_mean(unknown: str, names: Iterable[str]) -> str:
    """Return ``; did you mean 'depth'?``, or nothing if no known name is close."""
    by_lower = {name.lower(): name for name in names}
    matches = get_close_matches(unknown.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[matches[0]]!r}?" if matches else ""
