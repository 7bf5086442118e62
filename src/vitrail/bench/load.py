"""HTTP load generator, as cheap as can be, since its clients share the machine with the server that they measure.

One thread, plain sockets that stay open, requests built beforehand; of a response only status and length are read.
"""

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from vitrail.errors import VitrailError

LATEST = 60.0  # seconds to wait for a response


@dataclass
class Load:
    """Result of a load test: latencies of the successful responses in seconds, and counts of the other statuses."""

    seconds: list[float] = field(default_factory=list)
    others: dict[int, int] = field(default_factory=dict)
    elapsed: float = 0.0


@dataclass
class _Client:
    socket: socket.socket
    number: int  # index of the request
    left: memoryview = field(default_factory=lambda: memoryview(b""))  # bytes still to be sent
    answer: bytearray = field(default_factory=bytearray)
    start: float = 0.0


def request(content: bytes, kind: str = "image/jpeg", path: str = "/predict") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def load(host: str, port: int, requests: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Send requests: each client sends the next one as soon as it has its response; pending ones are awaited at the end."""
    done = Load()
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        start = time.perf_counter()
        for number in range(clients):
            client = _Client(stack.enter_context(socket.create_connection((host, port), timeout=LATEST)), number)
            client.socket.setblocking(False)
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(client.socket, selectors.EVENT_READ, client)
            _send(client, requests, ready)
        busy = clients
        while busy:
            events = ready.select(LATEST)
            if not events:
                raise VitrailError(f"the server has not responded for {LATEST:g} seconds; check its log")
            for key, what in events:
                if what & selectors.EVENT_WRITE:
                    _push(key.data, ready)
                elif status := _read(key.data):
                    now = time.perf_counter()
                    if status == 200:
                        done.seconds.append(now - key.data.start)
                    else:
                        done.others[status] = done.others.get(status, 0) + 1
                    if now - start < seconds:
                        key.data.number += clients
                        _send(key.data, requests, ready)
                    else:
                        busy -= 1
        done.elapsed = time.perf_counter() - start
    return done


def _send(client: _Client, requests: Sequence[bytes], ready: selectors.BaseSelector) -> None:
    client.answer.clear()
    client.start = time.perf_counter()
    client.left = memoryview(requests[client.number % len(requests)])
    _push(client, ready)


def _push(client: _Client, ready: selectors.BaseSelector) -> None:
    with suppress(BlockingIOError):
        client.left = client.left[client.socket.send(client.left) :]
    ready.modify(client.socket, selectors.EVENT_WRITE if client.left else selectors.EVENT_READ, client)


def _read(client: _Client) -> int:
    """Return the status once the response is complete, else 0."""
    got = client.socket.recv(65536)
    if not got:
        raise VitrailError("the server has closed a connection in use; check its log")
    client.answer += got
    end = client.answer.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = client.answer[:end].lower()
    at = head.find(b"content-length:")
    length = int(head[at + 15 :].split(b"\r\n", 1)[0])
    return int(head[9:12]) if len(client.answer) >= end + 4 + length else 0
