"""``vitrail doctor``: check that everything Vitrail needs is installed and works."""

import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

import typer
from rich.text import Text

from vitrail.cli.console import add_row, format_bytes, make_console, make_table, print_json
from vitrail.cli.options import JsonOption
from vitrail.system import available_cores, memory_info
from vitrail.training.hardware_check import AMX_WORKAROUND, bfloat16_fault

STATE_COLOURS = {"ok": "green", "absent": "dim", "warning": "yellow", "broken": "red"}


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    name: str
    state: str  # ok, absent, warning or broken
    detail: str
    remedy: str = ""


def doctor(json: JsonOption = False) -> None:
    """Check Python, torch, devices, memory, disk and optional packages; exit code 1 if something is broken."""
    findings = run_checks()
    if json:
        print_json({"ok": _all_working(findings), "findings": [vars(finding) for finding in findings]})
    else:
        sheet = make_table("check", "state", "detail", "remedy")
        for finding in findings:
            add_row(
                sheet, finding.name, Text(finding.state, style=STATE_COLOURS[finding.state]), finding.detail, finding.remedy
            )
        screen = make_console()
        screen.print(sheet)
        screen.print("all required parts work" if _all_working(findings) else "something is broken: see the remedies above")
    if not _all_working(findings):
        raise typer.Exit(1)


def run_checks() -> list[Finding]:
    packages, extras = _requirements()
    return [
        _check_python(),
        *(_check_package(name, minimum) for name, minimum in packages.items()),
        *_check_torch(),
        _check_memory(),
        _check_disk(),
        *_check_extras(extras),
    ]


def _all_working(findings: list[Finding]) -> bool:
    return not any(finding.state == "broken" for finding in findings)


def _judge(name: str, works: bool, detail: str, otherwise: str, remedy: str) -> Finding:
    """Return the finding of a check that works, or is ``otherwise``, with its remedy."""
    return Finding(name, "ok", detail) if works else Finding(name, otherwise, detail, remedy)


def _check_python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return _judge("python", sys.version_info >= (3, 11), detail, "broken", "install Python 3.11 or newer")


def _requirements() -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the required packages with their minimum version, and the packages of each extra, from the installed metadata."""
    packages: dict[str, str] = {}
    extras: dict[str, list[str]] = {}
    for line in requires("vitrail") or []:
        name = re.split(r"[<>=!~;\[ ]", line, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if extra:
            extras.setdefault(extra[1], []).append(name)
        else:
            packages[name] = line.partition(">=")[2]
    return packages, extras


def _check_package(name: str, minimum: str) -> Finding:
    module = {"pillow": "PIL"}.get(name.lower(), name)
    remedy = f"{sys.executable} -m pip install -c constraints.txt {name}"
    try:
        import_module(module)
        installed = version(name)
    except Exception as error:  # a broken binary can fail in any way, and the other checks must still run
        return Finding(name, "broken", f"{type(error).__name__}: {error}".splitlines()[0], remedy)
    if _parse_version(installed) < _parse_version(minimum):
        return Finding(name, "broken", f"{installed}, older than {minimum}", remedy)
    return Finding(name, "ok", installed)


def _parse_version(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text.split("+")[0])[:3]]


def _check_torch() -> list[Finding]:
    try:
        import torch
        from torch.nn import functional as F

        q = torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0))
        reference = (q @ q.mT * 8**-0.5).softmax(-1) @ q
        difference = (F.scaled_dot_product_attention(q, q, q) - reference).abs().max().item()
    except Exception as error:  # as above
        return [Finding("torch works", "broken", f"{type(error).__name__}: {error}".splitlines()[0], "reinstall torch")]
    cores, threads, fault = available_cores(), torch.get_num_threads(), bfloat16_fault()
    return [
        _judge("fused attention", difference < 1e-5, f"off by {difference:.1e}", "broken", "reinstall torch"),
        _judge("bfloat16", fault is None, fault or "works on this CPU", "warning", f"export {AMX_WORKAROUND}"),
        Finding("devices", "ok", ", ".join(_list_devices(torch))),
        _judge("threads", threads <= cores, f"{threads} for {cores} cores", "warning", f"set OMP_NUM_THREADS={cores}"),
    ]


def _list_devices(torch: Any) -> list[str]:
    devices = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append("mps")
    return [*devices, f"cpu ({torch.backends.cpu.get_cpu_capability()})"]


def _check_memory() -> Finding:
    info = memory_info()
    total, free = info.get("MemTotal"), info.get("MemAvailable")
    if total is None or free is None:
        return Finding("memory", "ok", "unknown on this system")
    detail = f"{format_bytes(free)} free of {format_bytes(total)}"
    return _judge("memory", free >= 2 * 1024**3, detail, "warning", "close other programs")


def _check_disk() -> Finding:
    free = shutil.disk_usage(".").free
    if not os.access(".", os.W_OK):
        return Finding("disk", "warning", "this folder cannot be written to", "work in a folder you can write to")
    return _judge("disk", free >= 2 * 1024**3, f"{format_bytes(free)} free here", "warning", "free disk space for runs")


def _check_extras(extras: dict[str, list[str]]) -> list[Finding]:
    findings = []
    for extra, names in extras.items():
        missing = [name for name in names if not _is_installed(name)]
        detail = f"without {', '.join(missing)}" if missing else ", ".join(names)
        remedy = f"{sys.executable} -m pip install -c constraints.txt 'vitrail[{extra}]'"
        findings.append(_judge(f"extra {extra}", not missing, detail, "absent", remedy))
    return findings


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
