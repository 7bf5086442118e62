"""Being asked to stop: what was accepted is answered, nobody new is let in, and the exit code says that it went well."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.serve.fake import coloured
from tests.serve.talking import LONG, PNG, Server, answer_of, colours, wait

HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"


def refused(server: Server) -> bool:
    try:
        server.raw().close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_accepted_is_answered_and_then_it_ends_well(number: signal.Signals) -> None:
    with colours(0.4, max_batch=2) as server, ThreadPoolExecutor(6) as clients, server.raw() as idle, server.raw() as half:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer_of(idle).status == 200
        picture = coloured(6)
        half.sendall(HEAD % len(picture) + picture[:40])  # accepted, though not yet whole
        waiting = [clients.submit(server.ask, "/predict", coloured(label), PNG) for label in range(1, 6)]
        server.until("vitrail_pictures_inside", 5)
        server.process.send_signal(number)
        half.sendall(picture[40:])
        assert [one.result(LONG).label for one in waiting] == ["1", "2", "3", "4", "5"]
        assert answer_of(half).label == "6"
        assert idle.recv(1) == b""
        assert server.process.wait(LONG) == 0
        assert refused(server)
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""


def test_what_cannot_be_answered_in_time_is_given_up_and_the_exit_code_says_so() -> None:
    with colours(30.0, max_batch=1, drain=1.0, deadline=90.0, queue=5) as server, ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(server.ask, "/predict", coloured(1), PNG)
        server.until("vitrail_pictures_inside", 1)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LONG) == 1
        assert server.process.stderr is not None
        assert server.process.stderr.read() == ""
        assert waiting.exception(LONG) is not None or waiting.result().status != 200


def test_asked_twice_it_ends_at_once() -> None:
    with colours(30.0, max_batch=1, deadline=90.0, queue=5) as server, ThreadPoolExecutor(1) as clients:
        waiting = clients.submit(server.ask, "/predict", coloured(1), PNG)
        server.until("vitrail_pictures_inside", 1)
        server.process.send_signal(signal.SIGTERM)
        wait(lambda: refused(server))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(LONG) == 143
        assert waiting.exception(LONG) is not None


LOADING = """
import sys, time
from tests.serve.fake import Fake
from vitrail.serve.listen import listen
from vitrail.serve.port import bound
from vitrail.serve.settings import Serving

def slowly():
    print("loading", flush=True)
    time.sleep(1.5)
    return Fake()

with bound("127.0.0.1", 0) as place:
    sys.exit(0 if listen(slowly, Serving(), place, "colours", lambda ready: print(ready.url)) else 1)
"""


def test_asked_while_it_loads_it_ends_without_a_word() -> None:
    """The port is closed by the time the model is there, and nobody is sent to it."""
    with subprocess.Popen([sys.executable, "-c", LOADING], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=LONG)
    assert said == ("", "")
    assert process.returncode == 0
