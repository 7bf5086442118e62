"""A fake Hugging Face hub over real HTTP: the few endpoints that pushing and loading a model need."""

import base64
import hashlib
import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def unreachable_hub(failure: str, home: Path) -> Iterator[dict[str, str]]:
    """Yield an environment whose hub is closed, or accepts connections and never responds."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        if failure == "closed":
            server.close()
        yield plain | {"HF_HOME": str(home), "HF_ENDPOINT": endpoint}


class FakeHub:
    """State of the hub: repositories by name as dictionaries of files, the write token and the requests received."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: list[str] = []
        self.requests: list[str] = []
        self.token = "hf_right"
        self.damaged: set[str] = set()  # names of files that are sent with one bit changed
        self.url = ""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._file() if "/resolve/" in self.path else self._answer(200, {})

    def do_GET(self) -> None:
        self.hub.requests.append(f"GET {self.path}")
        if "/resolve/" in self.path:
            return self._file()
        match = re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(/revision/\w+|/tree/\w+)?(\?.*)?", self.path)
        if match is None or match[1] not in self.hub.files:
            return self._answer(404, {"error": "Repository not found"})
        files = self.hub.files[match[1]]
        if match[2] and match[2].startswith("/tree"):
            rows = [{"type": "file", "path": name, "size": len(one), "oid": _oid(one)} for name, one in files.items()]
            return self._answer(200, rows)
        return self._answer(
            200,
            {
                "id": match[1],
                "sha": COMMIT,
                "private": self.hub.private[match[1]],
                "siblings": [_sibling(name, content) for name, content in files.items()],
            },
        )

    def do_POST(self) -> None:
        self.hub.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._answer(403, {"error": "Forbidden"})
        if self.path == "/api/repos/create":
            return self._create(json.loads(body))
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if re.search(r"/preupload/main", self.path):
            rows = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": rows})
        if re.search(r"/commit/main", self.path):
            return self._commit(body)
        return self._answer(404, {"error": "unknown"})

    def _create(self, wish: dict[str, Any]) -> None:
        name = f"{wish['organization']}/{wish['name']}" if wish.get("organization") else wish["name"]
        exists = name in self.hub.files
        self.hub.files.setdefault(name, {})
        self.hub.private.setdefault(name, wish.get("private", False) or wish.get("visibility") == "private")
        self._answer(409 if exists else 200, {"url": f"{self.hub.url}/{name}", "name": name})

    def _commit(self, body: bytes) -> None:
        found = re.search(r"/api/models/(.+)/commit/main", self.path)
        assert found
        files = self.hub.files[found[1]]
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
            elif line["key"] == "header":
                self.hub.commits.append(line["value"]["summary"])
        url = f"{self.hub.url}/{found[1]}/commit/{COMMIT}"
        self._answer(200, {"commitUrl": url, "commitOid": COMMIT, "success": True})

    def _file(self) -> None:
        found = re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/\w+/([\w.-]+)", self.path)
        content = self.hub.files.get(found[1], {}).get(found[2]) if found else None
        if found is None or content is None:
            return self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        etag = _sha256(content) if _is_large(found[2]) else _oid(content)
        sent = bytes([*content[:-1], content[-1] ^ 1]) if found[2] in self.hub.damaged else content
        return self._bytes(200, sent, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

    def _answer(self, code: int, content: Any, more: dict[str, str] | None = None) -> None:
        self._bytes(code, json.dumps(content).encode(), {"Content-Type": "application/json", **(more or {})})

    def _bytes(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_large(name: str) -> bool:
    """Return whether the hub keeps a file of this name in its store of large files, whose SHA-256 it states."""
    return name.endswith((".safetensors", ".bin"))


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    stated = {"lfs": {"sha256": _sha256(content), "size": len(content), "pointerSize": 134}} if _is_large(name) else {}
    return {"rfilename": name, "size": len(content), "blobId": _oid(content), **stated}


def use_hub(made: FakeHub, cache: Path, monkeypatch: Any, constants: Any) -> None:
    """Direct the hub's client, which reads its settings once, on import, to this hub and an empty cache."""
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{made.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_TOKEN", made.token)


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    built = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": built}))
    built.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield built
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
