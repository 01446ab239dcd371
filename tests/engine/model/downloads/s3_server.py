"""A real S3 server on plain files, built with Go once: versitygw on the loopback, with one pair of credentials."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.store import S3Store

from tests.cluster.build import VERSITYGW, ensure_built, program
from tests.free_port import free_port

ACCESS_KEY, SECRET_KEY = "octavo-test", "octavo-secret"
BUCKET = "models"


@dataclass(frozen=True)
class S3Server:
    """A running server whose bucket `models` is the folder `folder`."""

    port: int
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which S3 tools find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }

    def put(self, key: str, content: bytes) -> None:
        """Stores an object; above 5 MB in several parts."""
        credentials = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "region": "us-east-1"}
        endpoint = f"http://127.0.0.1:{self.port}"
        store = S3Store(BUCKET, endpoint=endpoint, client_options={"allow_http": True}, **credentials)
        obstore.put(store, key, content)


@contextmanager
def s3_server(root: Path) -> Iterator[S3Server]:
    """The server over `root` while the block runs."""
    ensure_built(print, (VERSITYGW,))
    (root / BUCKET).mkdir(parents=True)
    port = free_port()
    command = [str(program("versitygw", (VERSITYGW,))), f"127.0.0.1:{port}", str(root)]
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield S3Server(port, root / BUCKET)
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"versitygw ended with code {process.returncode}")
