"""Several times as many clients as there is room for, over sockets: the surplus is told at once, nobody else suffers."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass

from tests.serve.fake import coloured
from tests.serve.talking import LONG, Server, colours

CLIENTS, EACH, ROOM, DEADLINE = 60, 6, 12, 20.0


@dataclass(frozen=True)
class Told:
    status: int
    label: str | None
    wanted: int
    retry: str | None
    seconds: float


async def one(port: int, wanted: int, picture: bytes) -> Told:
    start = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /predict?top=1 HTTP/1.1\r\nHost: x\r\nContent-Type: image/bmp\r\nContent-Length: {len(picture)}\r\n\r\n"
        writer.write(head.encode() + picture)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
    finally:
        writer.transport.abort()
    label = body["pictures"][0]["label"] if "pictures" in body and "label" in body["pictures"][0] else None
    return Told(int(lines[0].split()[1]), label, wanted, headers.get("retry-after"), time.monotonic() - start)


async def flood(port: int, size: tuple[int, int]) -> list[Told]:
    async def client(number: int) -> list[Told]:
        labels = [1 + (number * EACH + place) % 511 for place in range(EACH)]
        return [await one(port, label, coloured(label, size, "BMP")) for label in labels]

    async with asyncio.timeout(LONG):
        return [told for some in await asyncio.gather(*map(client, range(CLIENTS))) for told in some]


def settled(server: Server) -> bool:
    return not any(server.number(f"vitrail_{name}") for name in ("pictures_inside", "queue_length", "body_bytes"))


def test_a_flood_is_refused_at_once_and_what_is_accepted_is_answered_in_time_and_never_mixed_up() -> None:
    with colours(0.004, max_batch=4, queue=ROOM, deadline=DEADLINE) as server:
        asyncio.run(flood(server.port, (300, 200)))
        before, answered = server.memory(), server.number('vitrail_requests_total{path="/predict",status="200"}')
        told = [one for _ in range(2) for one in asyncio.run(flood(server.port, (700, 500)))]  # 700 MB, were they kept
        statuses = Counter(one.status for one in told)
        assert set(statuses) == {200, 503}
        assert sum(statuses.values()) == 2 * CLIENTS * EACH
        for one in told:
            if one.status == 200:
                assert one.label == str(one.wanted)
                assert one.seconds < DEADLINE + LONG / 2  # its sending included, on a machine that is busy otherwise
            else:
                assert int(one.retry or 0) >= 1
        assert server.number('vitrail_requests_total{path="/predict",status="200"}') - answered == statuses[200]
        assert settled(server)
        assert server.memory() - before < 120 * 2**20  # what a dozen of them take, and what the allocator keeps
        assert server.ask("/predict", coloured(9), {"Content-Type": "image/png"}).label == "9"
