"""A local server with the part of the Hugging Face Hub API that one model needs."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.tokens: set[str | None] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.tokens.add(self.headers.get("Authorization"))
        path = self.path.split("?")[0]
        if path == "/api/repos/create":
            request = json.loads(body)
            name = f"{request.get('organization') or 'me'}/{request['name']}"
            self.server.repositories.setdefault(name, {})
            self._json({"url": f"{self.server.address}/{name}", "id": name, "name": name})
        elif "/preupload/" in path:
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self._json({"files": modes})
        elif "/commit/" in path:
            name = path.removeprefix("/api/models/").split("/commit/")[0]
            for line in body.splitlines():
                operation = json.loads(line)
                if operation["key"] == "file":
                    file = operation["value"]
                    content = base64.b64decode(file["content"])
                    self.server.repositories[name][file["path"]] = content
            url = f"{self.server.address}/{name}/commit/{COMMIT}"
            self._json({"success": True, "commitOid": COMMIT, "commitUrl": url, "hookOutput": ""})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        else:
            self._json({"error": f"nothing at {path}"}, 404)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/api/whoami-v2":
            self._json({"name": "me", "type": "user", "orgs": []})
            return
        if "/resolve/" in path:
            name, _, rest = path.removeprefix("/").partition("/resolve/")
            content = self.server.repositories.get(name, {}).get(rest.split("/", 1)[1])
            if content is not None:
                self._send(content, 200, "application/octet-stream")
                return
        name = path.removeprefix("/api/models/").split("/revision/")[0].split("/tree/")[0]
        files = self.server.repositories.get(name)
        if files is None:
            self._json({"error": "Repository not found"}, 404)
        elif "/tree/" in path:
            self._json([
                {"type": "file", "path": file, "size": len(content), "oid": _etag(content)}
                for file, content in files.items()
            ])  # fmt: skip
        else:
            siblings = [{"rfilename": file} for file in files]
            self._json({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings})

    do_HEAD = do_GET

    def _json(self, content: Any, status: int = 200) -> None:
        self._send(json.dumps(content).encode(), status, "application/json")

    def _send(self, content: bytes, status: int, media_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{_etag(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    thread = Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
