"""HTTP load generator, as cheap as can be, since its clients share the machine with the server that they measure.

One thread, plain sockets that stay open, requests built beforehand; of a response only status and length are read.
"""

import selectors
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from vitrail.errors import VitrailError

RESPONSE_TIMEOUT = 60.0  # seconds to wait for a response


@dataclass
class LoadResult:
    """Result of a load test: latencies of the successful responses in seconds, and counts of the other statuses."""

    seconds: list[float] = field(default_factory=list)
    other_statuses: Counter[int] = field(default_factory=Counter)


@dataclass
class _Client:
    socket: socket.socket
    request_index: int  # index of the request
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))  # bytes still to be sent
    response: bytearray = field(default_factory=bytearray)
    start: float = 0.0


def build_request(content: bytes, content_type: str = "image/jpeg") -> bytes:
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def send_load(host: str, port: int, requests: Sequence[bytes], clients: int, seconds: float) -> LoadResult:
    """Send requests: each client sends the next one as soon as it has its response; pending ones are awaited at the end."""
    result = LoadResult()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        start = time.perf_counter()
        for index in range(clients):
            client = _Client(stack.enter_context(socket.create_connection((host, port), timeout=RESPONSE_TIMEOUT)), index)
            client.socket.setblocking(False)
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(client.socket, selectors.EVENT_READ, client)
            _send(client, requests, selector)
        busy = clients
        while busy:
            events = selector.select(RESPONSE_TIMEOUT)
            if not events:
                raise VitrailError(f"the server has not responded for {RESPONSE_TIMEOUT:g} seconds; check its log")
            for key, event in events:
                client = key.data
                if event & selectors.EVENT_WRITE:
                    _send_more(client, selector)
                elif status := _read_response(client):
                    now = time.perf_counter()
                    if status == 200:
                        result.seconds.append(now - client.start)
                    else:
                        result.other_statuses[status] += 1
                    if now - start < seconds:
                        client.request_index += clients
                        _send(client, requests, selector)
                    else:
                        busy -= 1
    return result


def _send(client: _Client, requests: Sequence[bytes], selector: selectors.BaseSelector) -> None:
    client.response.clear()
    client.start = time.perf_counter()
    client.unsent = memoryview(requests[client.request_index % len(requests)])
    _send_more(client, selector)


def _send_more(client: _Client, selector: selectors.BaseSelector) -> None:
    with suppress(BlockingIOError):
        client.unsent = client.unsent[client.socket.send(client.unsent) :]
    selector.modify(client.socket, selectors.EVENT_WRITE if client.unsent else selectors.EVENT_READ, client)


def _read_response(client: _Client) -> int:
    """Return the status once the response is complete, else 0."""
    received = client.socket.recv(65536)
    if not received:
        raise VitrailError("the server has closed a connection in use; check its log")
    client.response += received
    end = client.response.find(b"\r\n\r\n")
    if end < 0:
        return 0
    head = client.response[:end].lower()
    at = head.find(b"content-length:")
    length = int(head[at + 15 :].split(b"\r\n", 1)[0])
    return int(head[9:12]) if len(client.response) >= end + 4 + length else 0
