"""A fake Hugging Face hub, as tests cannot reach the real one: it answers the three requests of a pull.

As a program, `fake_hub.py NAME DIRECTORY PORT`, it is a mirror that pods can reach.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

FIRST_COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIGNATURE = "0123456789secret"
PATIENT = {"HF_HUB_ETAG_TIMEOUT": "120", "HF_HUB_DOWNLOAD_TIMEOUT": "120"}
"""Variables with which the hub's library waits for this hub, however busy the machine is."""
ERRORS = {"nobody/nothing": (404, "RepoNotFound"), "meta/gated": (403, "GatedRepo")}


class FakeHub(ThreadingHTTPServer):
    """Serves the files of `directory` as the repository `name`; `requested` lists the paths that were asked for.

    With `cdn` files are redirected to signed addresses, which answer by these statuses one after another, the last for
    good; 0 is an answer that breaks off.
    """

    def __init__(self, name: str, directory: Path, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        super().__init__(address, _Handler)
        self.name, self.directory, self.requested = name, directory, []
        self.commits = [FIRST_COMMIT]
        self.cdn: list[int] = []

    def push(self) -> None:
        """The branch moves on to a new commit, with the same files."""
        self.commits.append(f"{len(self.commits):040x}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:  # noqa: PLR0911 - one for each kind of path
        path = urlsplit(self.path).path
        self.server.requested.append(path)
        for name, (status, code) in ERRORS.items():
            if name in path:
                return self.answer(status, b"", {"X-Error-Code": code})
        if path.startswith("/cdn/"):
            return self.answer_as_cdn()
        base = f"/api/models/{self.server.name}"
        commits = {f"{base}/revision/{commit}": commit for commit in self.server.commits}
        commit = {base: self.server.commits[-1], f"{base}/revision/main": self.server.commits[-1], **commits}.get(path)
        if commit is not None:
            return self.answer(200, json.dumps({"id": self.server.name, "sha": commit, "siblings": []}).encode())
        if path.startswith(f"{base}/revision/"):
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        files = {str(f.relative_to(self.server.directory)): f for f in self.server.directory.rglob("*") if f.is_file()}
        if path in {f"{base}/tree/{commit}" for commit in self.server.commits}:
            tree = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": oid(file)}
                for name, file in files.items()
            ]
            return self.answer(200, json.dumps(tree).encode())
        commit, _, name = path.removeprefix(f"/{self.server.name}/resolve/").partition("/")
        if commit in self.server.commits and name in files:
            headers = {"ETag": f'"{oid(files[name])}"', "X-Repo-Commit": commit}
            if self.server.cdn:
                linked = {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(files[name].stat().st_size)}
                signed = f"http://localhost:{self.server.server_port}/cdn/{name}?X-Amz-Signature={SIGNATURE}&x=1"
                return self.answer(302, b"", {**headers, **linked, "Location": signed})
            return self.answer(200, files[name].read_bytes(), headers)
        return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def answer_as_cdn(self) -> None:
        status = self.server.cdn.pop(0) if len(self.server.cdn) > 1 else self.server.cdn[0]
        self.close_connection = not status
        self.answer(status or 200, b"", {} if status else {"Content-Length": "1000"})

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


@contextmanager
def fake_hub(name: str, directory: Path) -> Iterator[FakeHub]:
    """The hub while the block runs."""
    hub = FakeHub(name, directory)
    thread = Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


if __name__ == "__main__":
    FakeHub(sys.argv[1], Path(sys.argv[2]), ("0.0.0.0", int(sys.argv[3]))).serve_forever()
