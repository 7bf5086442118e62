"""The Dockerfile matches the package; building needs a network, so nothing is built here."""

import json
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.cli.commands import COMMANDS, options

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def instructions() -> list[tuple[str, str]]:
    """Return the instructions and their arguments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest.strip()) for name, rest in (line.split(" ", 1) for line in text.splitlines() if line.strip())]


def last_stage() -> dict[str, str]:
    found = instructions()
    start = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return dict(found[start:])


def health_command() -> list[str]:
    command: list[str] = json.loads(last_stage()["HEALTHCHECK"].split("CMD", 1)[1])
    return command


def test_the_python_version_is_supported() -> None:
    bases = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    assert bases == {"python:3.12-slim"}
    assert PROJECT["requires-python"] == ">=3.11"


def test_the_server_is_process_1_and_its_options_exist() -> None:
    entry = json.loads(last_stage()["ENTRYPOINT"])  # the shell form would not be JSON
    assert isinstance(json.loads(last_stage()["CMD"]), list)
    assert entry[0] in PROJECT["scripts"]
    assert entry[1] in COMMANDS
    named = {word for word in entry if word.startswith("--")}
    text = (ROOT / "Dockerfile").read_text()
    named |= set(re.findall(r"vitrail /model (--[a-z-]+)", text))
    assert named <= set(options("serve"))
    assert entry[entry.index("--host") + 1] == "0.0.0.0"  # else it could not be reached from outside
    assert entry[entry.index("--port") + 1] == last_stage()["EXPOSE"]


def test_it_does_not_run_as_root() -> None:
    user = last_stage()["USER"]
    assert user.isdecimal()
    assert int(user) > 0
    assert f"--uid {user} " in last_stage()["RUN"]


def test_every_install_goes_through_the_constraints() -> None:
    installs = [part for name, rest in instructions() if name == "RUN" for part in rest.split("&&") if "pip install" in part]
    assert len(installs) == 3
    assert all("-c constraints.txt" in part for part in installs)
    (extras,) = re.findall(r"\.\[([\w,]+)\]", " ".join(installs))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_copied_files_exist_and_are_not_ignored() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    copied = [word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]]
    assert set(copied) >= {"constraints.txt", "pyproject.toml", "src", PROJECT["readme"], *PROJECT["license-files"]}
    for name in copied:
        assert (ROOT / name).exists()
        assert not _ignored(name, rules)
    for secret in (".git", ".venv", "runs", "tests", ".env"):
        assert _ignored(secret, rules)


def _ignored(name: str, rules: list[str]) -> bool:
    """Return whether a path is ignored; the last matching rule decides."""
    out = False
    for rule in rules:
        if fnmatch(name, rule.removeprefix("!")):
            out = not rule.startswith("!")
    return out


def test_no_other_host_is_named() -> None:
    for file in ("Dockerfile", ".dockerignore"):
        assert set(re.findall(r"https?://([\w.]+)", (ROOT / file).read_text())) <= {"127.0.0.1"}


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
def test_the_health_check_tells_a_healthy_server_from_an_unhealthy_one(status: int | None, healthy: bool) -> None:
    requested: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested.append(self.path)
            assert status is not None
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        port = server.server_address[1]
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        if status is None:
            server.server_close()
        else:
            thread.start()
        python, *words = health_command()
        assert python == "python"
        assert f":{last_stage()['EXPOSE']}/healthz" in words[-1]
        words[-1] = words[-1].replace(f":{last_stage()['EXPOSE']}/", f":{port}/")
        done = subprocess.run([sys.executable, *words], capture_output=True, check=False, timeout=20)
        if status is not None:
            server.shutdown()
    assert (done.returncode == 0) == healthy
    assert requested == ([] if status is None else ["/healthz"])


def test_the_server_has_that_path() -> None:
    pytest.importorskip("fastapi")
    assert '"/healthz"' in (ROOT / "src" / "vitrail" / "serve" / "app.py").read_text()
