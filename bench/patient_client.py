"""A client that repeats its requests while an API server is too busy to answer, and counts the repetitions."""

from __future__ import annotations

import itertools
import time
from typing import Any

import httpx2

_BUSY = (429, 500, 502, 503, 504)
_PAUSE_SECONDS = 1.0


class PatientClient:
    """Sends requests by `http`, each again for up to `seconds` while the server does not answer, or is too busy."""

    def __init__(self, http: httpx2.Client, seconds: float = 120.0) -> None:
        self._http = http
        self._seconds = seconds
        self.repeated = 0
        """The requests that had to be sent again."""

    def get(self, path: str, **options: Any) -> httpx2.Response:
        """GET `path`; with another status than 2xx or 404, HTTPStatusError."""
        return self._request("GET", path, **options)

    def create(self, path: str, body: dict[str, Any]) -> None:
        """POST `body`. If it exists after a repetition, that is no error: the first answer may have been lost."""
        self._request("POST", path, json=body)

    def merge(self, path: str, patch: dict[str, Any]) -> None:
        """Merge `patch` into the object at `path`."""
        self._request("PATCH", path, json=patch, headers={"Content-Type": "application/merge-patch+json"})

    def _request(self, method: str, path: str, **options: Any) -> httpx2.Response:
        until = time.monotonic() + self._seconds
        for sent in itertools.count(1):
            last = time.monotonic() >= until
            try:
                answer = self._http.request(method, path, **options)
            except httpx2.TransportError:
                if last:
                    raise
            else:
                there = (method, answer.status_code) == ("POST", 409) and sent > 1
                if answer.is_success or answer.status_code == 404 or there:
                    return answer
                if last or answer.status_code not in _BUSY:
                    answer.raise_for_status()
            self.repeated += 1
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the loop has no end")
