"""What a user did wrong, said in one sentence that names the value that would work."""

from collections.abc import Iterable
from difflib import get_close_matches


class VitrailError(ValueError):
    """Bad input. The command line prints it as one line and exits with code 2.

    Names and values out of a file may stand in it, so it is kept printable and of a sentence's length.
    """

    def __init__(self, sentence: str) -> None:
        plain = printable(sentence)
        super().__init__(plain if len(plain) < 900 else f"{plain[:600]} ... {plain[-200:]}")


def printable(text: str) -> str:
    """Names out of files can hold anything; on a screen they are letters and no more."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """``; did you mean 'depth'?``, or nothing when no known name is near."""
    by_lower = {name.lower(): name for name in known}
    near = get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
