"""The HTTP routes of the studio: access control, responses, errors. Needs no browser."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from starlette.requests import Request
from starlette.testclient import TestClient

import vitrail
from tests.browser.sample_models import save_model
from tests.studio.binary import decode_arrays
from vitrail.studio.app import create_studio_app
from vitrail.studio.explained_model import Selection
from vitrail.studio.image_library import ImageLibrary
from vitrail.studio.model_store import Cancelled, ModelStore, validate_models
from vitrail.studio.routes import API, StudioState, static_files
from vitrail.studio.service import ByteLRUCache, StudioService

TOKEN = "a-token-of-enough-letters"
HOME = f"http://127.0.0.1:1234/{TOKEN}/"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "mine", registers=2)


@pytest.fixture(scope="module")
def client(source: Path) -> Iterator[TestClient]:
    store = ModelStore([str(source)])
    validate_models(store)
    with TestClient(
        create_studio_app(StudioService(store, ImageLibrary()), TOKEN), base_url=HOME, follow_redirects=False
    ) as test_client:
        yield test_client


def test_the_page_is_served_with_strict_security_headers(client: TestClient) -> None:
    response = client.get(HOME)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["referrer-policy"] == "no-referrer"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "http://" not in response.text.replace("http://www.w3.org", "")
    assert client.get(HOME[:-1]).headers["location"] == f"/{TOKEN}/"


def test_every_static_file_is_served(client: TestClient) -> None:
    for name in static_files():
        response = client.get(HOME + name)
        assert response.status_code == 200
        assert "https://" not in response.text  # nothing is loaded from elsewhere
    assert {"index.html", "main.js", "style.css"} <= set(static_files())


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("http://127.0.0.1:1234/", {}),
        ("http://127.0.0.1:1234/api/studio", {}),
        ("http://127.0.0.1:1234/wrong-token/", {}),
        (HOME, {"Host": "evil.example"}),
        (HOME, {"Host": "127.0.0.1.evil.example:1234"}),
        (HOME, {"Host": "[::"}),
        (HOME + "api/studio", {"Origin": "http://evil.example"}),
        (HOME + "api/studio", {"Origin": "null"}),
        (HOME + "api/studio", {"Origin": "http://127.0.0.1:9"}),
        (HOME + "api/studio", {"Sec-Fetch-Site": "cross-site"}),
    ],
)
def test_foreign_requests_are_refused(client: TestClient, address: str, headers: dict[str, str]) -> None:
    response = client.get(address, headers=headers)
    assert response.status_code == 403
    assert "open" in response.json()["error"]
    assert TOKEN not in response.text


def test_a_link_on_another_page_opens_the_studio_and_nothing_else(client: TestClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get(HOME, headers=link).status_code == 200
    assert client.get(HOME + "api/studio", headers=link).status_code == 403
    response = client.get("http://127.0.0.1:1234/wrong/", headers=link)
    assert response.status_code == 403
    assert response.headers["content-type"].startswith("text/plain")


def test_class_names_are_added_to_weights_that_have_none(tmp_path: Path) -> None:
    model = vitrail.load(save_model(tmp_path / "with"))
    model.class_names = None
    vitrail.save(model, tmp_path / "without")
    shelf = ModelStore([str(tmp_path / "with"), str(tmp_path / "without")], ["a", "b", "c", "d", "e"])
    assert shelf.describe("m0")["class_names"][0] == "class 0"
    assert shelf.describe("m1")["class_names"] == ["a", "b", "c", "d", "e"]
    assert [shelf.describe(id)["has_class_names"] for id in shelf.models] == [True, True]
    assert not ModelStore([str(tmp_path / "without")]).describe("m0")["has_class_names"], "the page says how to add them"


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1:4321", "[::1]:1234"])
def test_requests_through_a_tunnel_are_accepted(client: TestClient, host: str) -> None:
    assert client.get(HOME + "main.js", headers={"Host": host, "Origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize("path", ["../trace.py", "%2e%2e/trace.py", "..%2ftrace.py", "static/main.js", "main.py", "x" * 5000])
def test_no_path_leaves_the_static_files(client: TestClient, path: str) -> None:
    response = client.get(HOME + path)
    assert response.status_code in (403, 404) or response.text == client.get(HOME).text


def test_a_trace_has_the_numbers_of_explain(client: TestClient, source: Path) -> None:
    response = client.get(HOME + "api/trace", params={"model": "m0", "image": "sample-1", "class": "3"})
    facts, arrays = decode_arrays(response.content)
    model = vitrail.load(source)
    expected: dict[str, Any] = {"vitrail": vitrail, "model": model}
    exec("\n".join(facts["image"]["imports"]), expected)
    images = eval(f"vitrail.preprocess(model, [{facts['image']['python']}])", expected)
    torch.testing.assert_close(torch.from_numpy(arrays["attention"].copy()), vitrail.explain.attention(model, images)[:, 0])
    assert facts["target"] == 3
    assert facts["registers"] == 2
    assert client.get(HOME + "api/trace", params={"model": "m0", "image": "sample-1", "class": "3"}).content == response.content


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("api/trace", 422, "has no model"),
        ("api/trace?model=m0", 422, "has no image"),
        ("api/trace?model=../../etc&image=sample-0", 422, "no model '../../etc'"),
        ("api/trace?model=m0&image=/etc/passwd", 422, "no image has the id"),
        ("api/trace?model=m0&image=sample-99", 422, "no image sample-99"),
        ("api/trace?model=m0&image=sample-0&class=99", 422, "class"),
        ("api/trace?model=m0&image=sample-0&step=3", 422, "not a run"),
        ("api/trace?model=m0&image=sample-0&step=x", 422, "must be an integer"),
        ("api/trace?model=m0&image=upload-0123456789abcdef", 410, "upload it again"),
        ("api/attention-rows?model=m0&image=sample-0&query=99", 422, "99"),
        ("api/saliency?model=m0&image=sample-0&method=magic", 422, "magic"),
        ("api/attention-pair?model=m0&image=sample-0&layer=9&head=0&query=0&key=0", 422, "9"),
        ("api/attention-pair?model=m0&image=sample-0", 422, "layer must be"),
        ("api/images?dataset=d7&split=test", 422, "7"),
        ("api/images?dataset=samples&split=all&count=100", 422, "60"),
        ("api/image?image=sample-0&size=99999", 422, "1024"),
        ("api/run?model=m0", 422, "is not a run"),
        ("api/events?model=m0", 422, "is not a run"),
        ("api/confusion?model=m0", 422, "is not a run"),
        ("api/cost?patch=0", 422, "patch"),
        ("api/cost?like=m9", 422, "no model"),
    ],
)
def test_an_invalid_request_gets_one_sentence(client: TestClient, path: str, status: int, text: str) -> None:
    response = client.get(HOME + path)
    assert response.status_code == status, response.text
    assert text in response.json()["error"]
    assert "\n" not in response.json()["error"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "model must be"),
        (b"[]", "model must be"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ({"model": "m0"}, "image must be"),
        ({"model": "m0", "image": "sample-0", "patches": ["x"]}, "patches must be"),
        ({"model": "m0", "image": "sample-0", "patches": [99]}, "99"),
        ({"model": "m0", "image": "sample-0", "patches": [1], "mode": "burn"}, "burn"),
        ({"model": "m0", "image": "sample-0", "patches": list(range(6)), "mode": "drop"}, "patch"),
        (b" " * (2**20 + 1), "1 MiB"),
    ],
)
def test_an_invalid_ablation_gets_one_sentence(client: TestClient, content: Any, text: str) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    response = client.post(HOME + "api/ablate", content=body)
    assert response.status_code == 422, response.text
    assert text in response.json()["error"]


def test_an_ablation_returns_the_probabilities_of_explain(client: TestClient, source: Path) -> None:
    fields = {"model": "m0", "image": "sample-2", "patches": [0, 4], "mode": "drop", "seed": 0}
    result = client.post(HOME + "api/ablate", json=fields).json()
    model = vitrail.load(source)
    from vitrail.studio.sample_images import Samples

    images = vitrail.preprocess(model, [Samples().read(2)])
    probabilities = vitrail.explain.ablate(model, images, [0, 4], "drop")[0].softmax(0)
    assert {row["class"]: row["after"] for row in result["top"]} == pytest.approx(
        dict(enumerate(probabilities.tolist())), abs=1e-6
    )


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"<svg/>", b"\xff\xd8\xff" + b"x" * 100, b"\x89PNG\r\n\x1a\n"])
def test_a_file_that_is_not_an_image_is_refused(client: TestClient, content: bytes) -> None:
    response = client.post(HOME + "api/upload?name=cat.jpg", content=content)
    assert response.status_code == 422
    assert "\n" not in response.json()["error"]


def test_an_upload_that_is_too_large_is_not_read_to_its_end(client: TestClient) -> None:
    sent = 0

    def pieces() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(40):
            sent += 1
            yield bytes(2**20)

    response = client.post(HOME + "api/upload", content=pieces())
    assert response.status_code == 422
    assert "16 MiB" in response.json()["error"]


@pytest.mark.parametrize("name", API)
def test_every_route_accepts_only_its_own_method(client: TestClient, name: str) -> None:
    other = {"GET": "POST", "POST": "GET"}[API[name][0]]
    assert client.request(other, HOME + f"api/{name}").status_code == 405


def test_an_internal_error_is_one_sentence_on_the_page_and_a_traceback_in_the_terminal(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def mistaken(*_: object) -> None:
        raise KeyError("a name that nobody has")

    monkeypatch.setattr("vitrail.studio.service.trace_image", mistaken)
    response = client.get(HOME + "api/trace?model=m0&image=sample-7")
    assert response.status_code == 500
    assert "see its terminal" in response.json()["error"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "a name that nobody has" in caplog.text
    assert TOKEN not in caplog.text


def test_cached_responses_stay_within_their_limit() -> None:
    cache, fields = ByteLRUCache(max_bytes=100), []

    def response(size: int) -> bytes:
        fields.append(size)
        return bytes(size)

    for size in (40, 50, 40, 60, 50, 300, 40):
        assert len(cache.get(("answer", size), lambda size=size: response(size))) == size  # type: ignore[misc]
    assert fields == [40, 50, 60, 50, 300, 40]  # 40 was still cached the second time, 50 was evicted for 60
    assert cache.num_bytes <= 340


def test_models_of_equal_names_get_distinct_names(tmp_path: Path) -> None:
    paths = [save_model(tmp_path / name / "best") for name in ("one", "other")]
    names = [one.name for one in ModelStore([str(path) for path in paths]).models.values()]
    assert names == ["best (m0)", "best (m1)"]


def test_a_model_without_attention_is_refused_before_the_page_opens(tmp_path: Path) -> None:
    vitrail.save(vitrail.build("R50x1", width=32, stages=(1, 1), classes=3, image=32), tmp_path / "resnet")
    with pytest.raises(vitrail.VitrailError, match="no attention"):
        validate_models(ModelStore([str(tmp_path / "resnet")]))


def test_a_cancelled_computation_stops_at_its_next_forward_pass(source: Path) -> None:
    desk, gone = StudioService(ModelStore([str(source)]), ImageLibrary()), Event()
    gone.set()
    with pytest.raises(Cancelled):
        desk.saliency(("m0", None), "sample-0", None, "relevance", Selection(), gone)
    facts, _ = decode_arrays(desk.saliency(("m0", None), "sample-0", None, "relevance"))  # and the next request is answered
    assert facts["method"] == "relevance"


@pytest.mark.parametrize("kind", ["disconnects", "studio ends"])
def test_work_is_cancelled_when_its_client_disconnects_or_the_studio_ends(kind: str, source: Path) -> None:
    async def run() -> bool:
        studio = StudioState(StudioService(ModelStore([str(source)]), ImageLibrary()))
        working, disconnected = Event(), asyncio.Event()

        async def receive() -> dict[str, Any]:
            await disconnected.wait()
            return {"type": "http.disconnect"}

        def work(seconds: float, cancel_event: Event) -> bool:
            working.set()
            return cancel_event.wait(seconds)

        request = Request({"type": "http", "method": "GET", "headers": []}, receive)
        task = asyncio.create_task(studio.run_cancellable(request, work, 60.0))
        await asyncio.to_thread(working.wait)
        disconnected.set() if kind == "disconnects" else studio.shut_down()
        cancelled = await task
        assert studio.cancel_events == set()
        return bool(cancelled)

    assert asyncio.run(run())
