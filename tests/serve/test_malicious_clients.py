"""Slow, malicious or disconnected clients over sockets: whatever they do, the server answers the next one."""

import socket
import threading
from collections.abc import Iterator

import pytest
from PIL import Image

from tests.serve.fake_predictor import coloured_image, encode_image
from tests.serve.server_process import PNG, Response, ServerProcess, receive_response, start_fake_server, wait_until

HEAD = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
MAX_BODY_BYTES = 200_000


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with start_fake_server(
        0.2, max_batch=1, max_body=MAX_BODY_BYTES, read_timeout=1.0, max_queue=30, request_timeout=60
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(server: ServerProcess) -> Iterator[None]:
    """After each test the server still answers, and holds nothing of earlier requests."""
    yield
    assert server.request("/predict", coloured_image(77), PNG).label == "77"
    wait_until(lambda: not any(server.metric(f"vitrail_{name}") for name in ("images_in_flight", "queue_length", "body_bytes")))


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server closed the connection, after reading the rest."""
    try:
        while connection.recv(4096):
            pass
        return True
    except ConnectionResetError:
        return True


def test_a_client_that_stops_halfway_through_an_image_gets_408_and_is_disconnected(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + coloured_image(3)[:50])
        answer = receive_response(connection)
        assert answer.status == 408
        assert "1 seconds" in answer.json["error"]
        assert is_closed(connection)


def test_a_client_that_sends_half_a_header_or_nothing_is_disconnected(server: ServerProcess) -> None:
    with server.connect() as silent, server.connect() as slow:
        slow.sendall(HEAD)
        assert is_closed(silent)
        assert is_closed(slow)


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_sent(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 5000000000\r\nExpect: 100-continue\r\n\r\n")
        assert receive_response(connection).status == 413


def test_a_body_without_a_length_is_cut_off_where_it_is_too_large(server: ServerProcess) -> None:
    before, answers = server.memory_bytes(), list[Response]()
    with server.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        reading = threading.Thread(target=lambda: answers.append(receive_response(connection)))
        reading.start()
        try:
            for _ in range(2000):  # 200 MB, unless refused
                connection.sendall(b"186a0\r\n" + bytes(100_000) + b"\r\n")
                if answers:
                    break
        except OSError:
            pass
        reading.join()
    assert answers[0].status == 413
    assert server.memory_bytes() - before < 50 * 2**20


def test_a_chunked_body_within_the_limit_is_accepted(server: ServerProcess) -> None:
    image = coloured_image(88)
    assert server.request("/predict", iter([image[:30], image[30:]]), PNG).label == "88"


def test_a_wrong_content_length_affects_only_its_own_connection(server: ServerProcess) -> None:
    with server.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 20\r\n\r\n" + coloured_image(3))
        assert receive_response(connection).status == 422  # of its first twenty bytes
        assert receive_response(connection).status == 400  # the rest is not a request
        assert is_closed(connection)


def test_a_decompression_bomb_is_refused_by_its_pixels(server: ServerProcess) -> None:
    bomb = encode_image(Image.new("1", (10_000, 10_000)))
    assert len(bomb) < 20_000
    answer = server.request("/predict", bomb, PNG)
    assert answer.status == 422
    assert "10000 x 10000 pixels" in answer.json["error"]


def test_images_of_a_disconnected_client_are_dropped_and_not_computed(server: ServerProcess) -> None:
    image = coloured_image(5)
    computed = server.metric("vitrail_batch_size_sum")
    left = server.metric('vitrail_images_total{outcome="disconnected"}')
    connections = [server.connect() for _ in range(6)]
    for connection in connections:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(image) + image)
    server.wait_for_metric("vitrail_images_in_flight", 4)
    for connection in connections:
        connection.close()
    server.wait_for_metric('vitrail_images_total{outcome="disconnected"}', left + 3)
    wait_until(lambda: server.metric("vitrail_images_in_flight") == 0)
    assert server.metric("vitrail_batch_size_sum") - computed <= 3


def test_malformed_requests_get_400(server: ServerProcess) -> None:
    for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET\r\n\r\n", b"A" * 100_000):
        with server.connect() as connection:
            connection.sendall(nonsense)
            assert receive_response(connection).status == 400
            assert is_closed(connection)


def test_one_connection_can_pipeline_several_requests(server: ServerProcess) -> None:
    with server.connect() as connection:
        images = [coloured_image(label) for label in (1, 2, 3)]
        connection.sendall(b"".join(HEAD + b"Content-Length: %d\r\n\r\n" % len(one) + one for one in images))
        assert [receive_response(connection).label for _ in images] == ["1", "2", "3"]
