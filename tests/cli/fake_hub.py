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
                "siblings": [{"rfilename": name} for name in files],
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
        if content is None:
            return self._answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        return self._bytes(200, content, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT})

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
