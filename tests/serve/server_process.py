"""A server in its own process, and a plain client for it over real sockets."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
TIMEOUT = 300.0  # seconds that anything may take on a busy machine
PNG = {"Content-Type": "image/png"}


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def label(self) -> str:
        return self.json["predictions"][0]["label"]


@dataclass(frozen=True)
class ServerProcess:
    process: "subprocess.Popen[str]"
    port: int
    url: str

    def request(
        self,
        path: str,
        body: bytes | Iterator[bytes] | None = None,
        headers: dict[str, str] | None = None,
        method: str = "POST",
    ) -> Response:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        try:
            connection.request(method, path, body, headers or {}, encode_chunked=isinstance(body, Iterator))
            return _read_response(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str) -> Response:
        return self.request(path, method="GET")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics").body.decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def wait_for_metric(self, name: str, value: float) -> None:
        """Wait until a metric reaches a value, or fail."""
        wait_until(lambda: self.metric(name) >= value)

    def memory_bytes(self) -> int:
        """Return the resident memory of the process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", status)[0])


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT
    while not true():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def _read_response(response: http.client.HTTPResponse) -> Response:
    return Response(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def receive_response(connection: socket.socket) -> Response:
    """Read exactly one response from a socket, since another may follow."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        got = connection.recv(1)
        assert got, head
        head += got
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    length, body = int(headers.get("content-length", 0)), b""
    while len(body) < length:
        body += connection.recv(length - len(body))
    return Response(int(first.split()[1]), headers, body)


@contextmanager
def start_server(command: Sequence[str], env: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """Start a server and wait until it is ready; it is killed afterwards."""
    full = [sys.executable, "-W", "error", *command]
    process = subprocess.Popen(
        full, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        url = json.loads(line)["url"]
        yield ServerProcess(process, urlsplit(url).port or 0, url)
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT)


@contextmanager
def start_fake_server(seconds: float = 0.0, **settings: object) -> Iterator[ServerProcess]:
    """Start a server of the fake predictor."""
    with start_server(["-m", "tests.serve.fake_predictor", str(seconds), json.dumps(settings)]) as server:
        yield server
