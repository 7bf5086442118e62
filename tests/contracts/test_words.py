"""The project speaks the field's words: in names, docstrings, error messages, help texts and pages for people."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.cli.commands import COMMANDS, help_text
from vitrail.data.sources.table_columns import IMAGE_COLUMNS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "vitrail"
FILES = sorted(PACKAGE.rglob("*.py"))
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "log.md")]
SCRIPTS = sorted((PACKAGE / "studio" / "static").glob("*.js"))

PARTICIPLES = {
    "told", "seen", "held", "kept", "chosen", "opened", "joined", "taken", "shown", "asked", "given", "looked", "said", "found",
    "made", "known", "drawn", "tried", "noted", "evened", "shipped", "wishes", "pictures", "odds", "anew",
}  # fmt: skip
FORBIDDEN = {
    r"pictures?": "image",
    r"data sets?": "dataset",
    r"ma(?:de|kes?) ready": "preprocess",
    r"goes on from|gone on with|go on from": "resume",
    r"anew": "again, rebuilt or retrained",
    r"odds": "probabilities",
    r"alike": "similar, equal or of the same shape",
    r"disturbances?|disturbed": "corruption",
    r"(?:is|are|has|have) no numbers?": "is not finite (NaN or Inf)",
    r"whoever": "the caller, a client, a process",
    r"to be judged by": "test",
    r"taken for what": "confusion matrix",
    r"in pieces": "in micro-batches",
}
OPENINGS = re.compile(r"(?:Of|By|With|From|Where|That|Those|Whose|Which|Who|What)\b")


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _relative(file: Path) -> str:
    return str(file.relative_to(ROOT))


def _misused(text: str) -> list[str]:
    return [
        f"{match[0]!r} (say {word})"
        for pattern, word in FORBIDDEN.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE)
    ]


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield getattr(node, "name", "the module"), text


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _public_definitions(tree: ast.Module) -> Iterator[str]:
    """Public classes, functions, methods, fields and parameters of public functions."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name
            yield from (argument.arg for argument in [*node.args.args, *node.args.kwonlyargs])
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                    yield member.name
                elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    yield member.target.id


def test_public_names_are_nouns_and_verbs_of_the_field() -> None:
    assert [_relative(file) for file in FILES if file.stem in PARTICIPLES] == []
    names = [(_relative(file), name) for file in FILES for name in _public_definitions(_tree(file))]
    assert [(file, name) for file, name in names if name.lower() in PARTICIPLES] == []


def test_a_docstring_stands_alone() -> None:
    texts = [(_relative(file), name, text) for file in FILES for name, text in _docstrings(_tree(file))]
    assert [(file, name, text.splitlines()[0]) for file, name, text in texts if OPENINGS.match(text)] == []


def test_docstrings_and_messages_use_the_words_of_the_field() -> None:
    texts = [(_relative(file), text) for file in FILES for text in _strings(_tree(file)) if text not in IMAGE_COLUMNS]
    assert [(file, words) for file, text in texts if (words := _misused(text))] == []


def test_comments_use_the_words_of_the_field() -> None:
    comments = [(_relative(file), line) for file in FILES for line in re.findall(r"# (.*)$", file.read_text(), re.MULTILINE)]
    assert [(file, words) for file, line in comments if (words := _misused(line))] == []


def test_pages_and_the_studio_use_the_words_of_the_field() -> None:
    assert [(_relative(page), words) for page in (*PAGES, *SCRIPTS) if (words := _misused(page.read_text()))] == []


def test_help_uses_the_words_of_the_field() -> None:
    assert [(command, words) for command in COMMANDS if (words := _misused(help_text(command)))] == []


def test_a_public_class_has_its_name_alone() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for file in FILES:
        for node in _tree(file).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(_relative(file))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
