"""More clients than the queue holds, over sockets: the surplus is refused at once, and no other client is affected."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass

from tests.serve.fake_predictor import coloured_image
from tests.serve.server_process import TIMEOUT, ServerProcess, start_fake_server

CLIENTS, REQUESTS_PER_CLIENT, MAX_QUEUE, DEADLINE = 60, 6, 12, 20.0


@dataclass(frozen=True)
class TimedResponse:
    status: int
    label: str | None
    expected: int
    retry: str | None
    seconds: float


async def send_request(port: int, expected: int, image: bytes) -> TimedResponse:
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /predict?top=1 HTTP/1.1\r\nHost: x\r\nContent-Type: image/bmp\r\nContent-Length: {len(image)}\r\n\r\n"
        writer.write(head.encode() + image)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
    finally:
        writer.transport.abort()
    label = body["predictions"][0]["label"] if "predictions" in body and "label" in body["predictions"][0] else None
    return TimedResponse(int(lines[0].split()[1]), label, expected, headers.get("retry-after"), time.monotonic() - start)


async def send_all(port: int, size: tuple[int, int]) -> list[TimedResponse]:
    async def client(number: int) -> list[TimedResponse]:
        labels = [1 + (number * REQUESTS_PER_CLIENT + index) % 511 for index in range(REQUESTS_PER_CLIENT)]
        return [await send_request(port, label, coloured_image(label, size, "BMP")) for label in labels]

    async with asyncio.timeout(TIMEOUT):
        return [response for several in await asyncio.gather(*map(client, range(CLIENTS))) for response in several]


def is_idle(server: ServerProcess) -> bool:
    return not any(server.metric(f"vitrail_{name}") for name in ("images_in_flight", "queue_length", "body_bytes"))


def test_under_overload_the_surplus_is_refused_at_once_and_accepted_requests_are_answered_in_time_and_never_mixed_up() -> None:
    with start_fake_server(0.004, max_batch=4, max_queue=MAX_QUEUE, request_timeout=DEADLINE) as server:
        asyncio.run(send_all(server.port, (300, 200)))
        before, predicted_before = server.memory_bytes(), server.metric('vitrail_requests_total{path="/predict",status="200"}')
        responses = asyncio.run(send_all(server.port, (700, 500)))  # 350 MB, if all stayed in memory
        statuses = Counter(one.status for one in responses)
        assert set(statuses) == {200, 503}
        assert sum(statuses.values()) == CLIENTS * REQUESTS_PER_CLIENT
        for one in responses:
            if one.status == 200:
                assert one.label == str(one.expected)
                assert one.seconds < DEADLINE + TIMEOUT / 2  # including the upload, on a busy machine
            else:
                assert int(one.retry or 0) >= 1
        assert server.metric('vitrail_requests_total{path="/predict",status="200"}') - predicted_before == statuses[200]
        assert is_idle(server)
        assert server.memory_bytes() - before < 120 * 2**20  # a dozen images, and what the allocator keeps
        assert server.request("/predict", coloured_image(9), {"Content-Type": "image/png"}).label == "9"
