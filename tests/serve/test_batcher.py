"""What the batcher promises, with an engine whose every step the test decides."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
from numpy import ndarray

from tests.serve.fake import Fake, coloured
from vitrail.serve.batcher import Batcher, Visit
from vitrail.serve.metrics import Metrics
from vitrail.serve.settings import Serving
from vitrail.serve.trouble import Trouble

LONG = 300.0


@asynccontextmanager
async def house(engine: Fake, **settings: Any) -> AsyncIterator[Batcher]:
    batcher, opened = Batcher(lambda: engine, Serving(**settings), Metrics()), asyncio.Event()
    batcher.start(opened.set)
    await asyncio.wait_for(opened.wait(), LONG)
    assert batcher.error is None
    engine.sizes.clear()
    try:
        yield batcher
    finally:
        await asyncio.to_thread(batcher.close)


def enter(batcher: Batcher, *labels: int) -> list[Visit]:
    pictures = [coloured(label) for label in labels]
    batcher.hold(sum(map(len, pictures)))
    return batcher.enter(pictures)


def label(outcome: Any) -> int:
    assert isinstance(outcome, ndarray), outcome
    return int(outcome.argmax())


class Gate:
    """The engine stands still from when it takes a white picture until the test opens the gate."""

    def __init__(self) -> None:
        self.reached, self.open = Event(), Event()

    def __call__(self, pictures: ndarray) -> None:
        if (pictures[:, 0, 0].min(axis=1) >= 224).any():
            self.reached.set()
            assert self.open.wait(LONG)


WHITE = 511


@dataclass
class Busy:
    """A house whose engine stands still over the first picture."""

    batcher: Batcher
    engine: Fake
    first: list[Visit]
    open: Callable[[], None]


@asynccontextmanager
async def busy(**settings: Any) -> AsyncIterator[Busy]:
    gate = Gate()
    engine = Fake(before=gate)
    async with house(engine, **settings) as batcher:
        first = enter(batcher, WHITE)
        await asyncio.to_thread(gate.reached.wait, LONG)
        yield Busy(batcher, engine, first, gate.open.set)


def test_answers_come_in_order_and_each_is_its_own() -> None:
    async def run() -> None:
        async with house(Fake(), max_batch=5, queue=512) as batcher:
            visits = [enter(batcher, *range(first, first + 3)) for first in range(1, 301, 3)]
            for number, some in enumerate(visits):
                assert [label(one) for one in await batcher.answered(some)] == [3 * number + place for place in (1, 2, 3)]
            assert (batcher.inside, batcher.coming, batcher.bytes, batcher.waiting) == (0, 0, 0, 0)

    asyncio.run(run())


def test_those_who_wait_while_a_batch_is_computed_are_the_next_batch() -> None:
    async def run() -> None:
        async with busy(max_batch=4, max_delay=10.0) as there:  # the first alone, and at once: nobody else was on the way
            others = enter(there.batcher, *range(1, 8))
            await until(lambda: there.batcher.waiting == 7)
            there.open()
            assert [label(one) for one in await there.batcher.answered(there.first + others)] == [WHITE, *range(1, 8)]
            assert there.engine.sizes == [1, 4, 3]

    asyncio.run(run())


def test_one_bad_picture_fails_alone_and_says_why() -> None:
    async def run() -> None:
        async with busy(max_batch=8) as there:
            black, broken = 0, [b"GIF89a but not really"]
            there.batcher.hold(len(broken[0]))
            others = enter(there.batcher, 3, black, 5) + there.batcher.enter(broken)
            await until(lambda: there.batcher.coming == 0)
            there.open()
            outcomes = await there.batcher.answered(there.first + others)
            assert [label(outcomes[place]) for place in (0, 1, 3)] == [WHITE, 3, 5]
            assert isinstance(outcomes[2], Trouble)
            assert (outcomes[2].status, outcomes[2].reason) == (500, "failed")
            assert isinstance(outcomes[4], Trouble)
            assert (outcomes[4].status, outcomes[4].reason) == (422, "broken")

    asyncio.run(run())


def test_the_house_has_room_for_so_many_and_refuses_all_of_a_request_or_none() -> None:
    async def run() -> None:
        async with busy(max_batch=2, queue=5) as there:
            others = enter(there.batcher, 1, 2, 3)
            with pytest.raises(Trouble) as refused:
                there.batcher.enter([coloured(4), coloured(5)])
            assert (refused.value.status, refused.value.reason) == (503, "full")
            others += enter(there.batcher, 6)
            there.open()
            assert [label(one) for one in await there.batcher.answered(there.first + others)] == [WHITE, 1, 2, 3, 6]
            assert [label(one) for one in await there.batcher.answered(enter(there.batcher, 4, 5))] == [4, 5]

    asyncio.run(run())


def test_who_would_be_late_by_the_pace_of_late_is_refused_at_once_unless_the_house_is_empty() -> None:
    async def run() -> None:
        gate = Gate()
        async with house(Fake(before=gate), max_batch=1, queue=99, deadline=30.0) as batcher:
            batcher.pace = 20.0
            first = enter(batcher, WHITE)
            with pytest.raises(Trouble) as refused:
                batcher.check()
            assert refused.value.status == 503
            assert refused.value.retry == pytest.approx(20.0)
            gate.open.set()
            await batcher.answered(first)
            assert batcher.pace < 20.0

    asyncio.run(run())


def test_the_late_are_told_so_and_never_computed() -> None:
    async def run() -> None:
        async with busy(max_batch=1, deadline=0.3) as there:
            there.batcher.pace = 0.0
            (outcome,) = await there.batcher.answered(enter(there.batcher, 7))
            assert isinstance(outcome, Trouble)
            assert outcome.status == 504
            there.open()
            await asyncio.wait([there.first[0].future])
            await until(lambda: there.batcher.inside == 0)
            assert there.engine.sizes == [1]

    asyncio.run(run())


def test_the_pictures_of_a_client_who_left_are_never_computed() -> None:
    async def run() -> None:
        async with busy(max_batch=1) as there:
            for visit in enter(there.batcher, 1, 2):
                visit.future.cancel()
            last = enter(there.batcher, 3)
            there.open()
            assert [label(one) for one in await there.batcher.answered(there.first + last)] == [WHITE, 3]
            await until(lambda: there.batcher.inside == 0)
            assert there.engine.sizes == [1, 1]

    asyncio.run(run())


def test_closing_computes_what_is_in_the_house_and_lets_nobody_in() -> None:
    async def run() -> None:
        gate = Gate()
        async with house(Fake(before=gate), max_batch=2) as batcher:
            visits = enter(batcher, WHITE, 1, 2, 3)
            await asyncio.to_thread(gate.reached.wait, LONG)
            closed = asyncio.ensure_future(asyncio.to_thread(batcher.close, LONG))
            await until(lambda: batcher.closing)
            with pytest.raises(Trouble, match="draining"):
                batcher.check()
            gate.open.set()
            await closed
            assert [label(one) for one in await batcher.answered(visits)] == [WHITE, 1, 2, 3]

    asyncio.run(run())


def test_bodies_have_so_much_memory_together() -> None:
    async def run() -> None:
        async with house(Fake(), max_body=100) as batcher:
            batcher.hold(790)
            with pytest.raises(Trouble) as refused:
                batcher.hold(11)
            assert (refused.value.status, refused.value.reason, batcher.bytes) == (503, "memory", 790)
            batcher.hold(10)
            batcher.hold(-800)

    asyncio.run(run())


def test_an_engine_that_cannot_be_opened_is_told_and_lets_nobody_in() -> None:
    def broken() -> Fake:
        raise OSError("no such model")

    async def run() -> None:
        batcher, opened = Batcher(broken, Serving(), Metrics()), asyncio.Event()
        batcher.start(opened.set)
        await asyncio.wait_for(opened.wait(), LONG)
        assert str(batcher.error) == "no such model"
        with pytest.raises(Trouble, match="loading"):
            batcher.check()
        batcher.close()

    asyncio.run(run())


def test_a_job_sees_one_picture_alone() -> None:
    async def run() -> None:
        async with house(Fake()) as batcher:
            pictures = [coloured(9), coloured(18)]
            batcher.hold(sum(map(len, pictures)))
            visits = batcher.enter(pictures, lambda engine, pixels: (engine.name, *pixels.shape))
            assert await batcher.answered(visits) == [("fake", 4, 6, 3)] * 2

    asyncio.run(run())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not true():
            await asyncio.sleep(0.005)
