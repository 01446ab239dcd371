"""Requests to the API server: bounded in time, held back while it asks for less, by the official client's transport.

The client brings TLS, kubeconfig and rotating tokens; `cluster.py` knows the paths and bodies of all requests.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from octavo_operator.reconcile.api_requests.api_error import HELD_BACK, ApiError, NotLeadingError
from octavo_operator.reconcile.api_requests.limiter import Limiter, retry_after_of
from octavo_operator.reconcile.api_requests.rights import MissingRights, with_remedy
from octavo_operator.reconcile.api_requests.server_clock import ServerClock

Object = dict[str, Any]

_JSON = "application/json"
_TIMEOUT_SECONDS = 30.0
_NO_ANSWER = "NoAnswer"
_DENIAL = re.compile(r"denied (?:the )?request\b")
_CODES_OF_DENIALS = (400, 403, 422)
"""An admission webhook or policy denies a request with a code of its own choice, such as 429, 401 or 503: other codes
than these would say something about the API server, the operator's credentials or the object that was asked for.
"""
_UNAUTHORIZED = (
    ": the API server does not accept the operator's credentials; if its service account was deleted and created "
    "again, delete the operator's pods, so that new ones get a token of the new account at once: the kubelet renews "
    "those of the present pods only after 48 minutes, and a restart of their containers changes nothing"
)
_WEBHOOKS = (
    "; if other requests are answered, an admission webhook may hang: kubectl get "
    "validatingwebhookconfigurations,mutatingwebhookconfigurations"
)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the API server."""

    method: str
    path: str
    body: Object | None
    query: list[tuple[str, str]] | None
    content_type: str
    accept: str = _JSON


class ApiServer:
    """The connection to the API server. Made by `connect`, ended by `close`.

    `may_write_for` says for how many seconds from now this replica may write: no write outlives the right to it.
    """

    def __init__(self, api: Any) -> None:
        self._api = api
        self.limiter = Limiter()
        self.clock = ServerClock()
        self.may_write_for: Callable[[], float] = lambda: _TIMEOUT_SECONDS
        self.wrote: Callable[[str, str], object] = lambda *_: None
        self.missing_rights = MissingRights()

    @classmethod
    async def connect(cls) -> ApiServer:
        """Connect by the pod's service account, or by KUBECONFIG outside of a cluster."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        return cls(client.ApiClient(configuration))

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def credentials(self) -> dict[str, Any]:
        """Return the credentials for the watches, as the fields of `kopf.ConnectionInfo`; read again at each call."""
        known = self._api.configuration
        bearer = await known.get_api_key_with_prefix("BearerToken")
        return {
            "server": known.host,
            "ca_path": known.ssl_ca_cert,
            "insecure": not known.verify_ssl,
            "token": bearer.split(" ", 1)[-1] if bearer else None,
            "certificate_path": known.cert_file,
            "private_key_path": known.key_file,
        }

    async def write(
        self,
        verb: str,
        what: str,
        method: str,
        path: str,
        body: Object,
        query: list[tuple[str, str]] | None = None,
        content_type: str = _JSON,
    ) -> Object:
        """Send one write; metrics count it as `what`. NotLeadingError if this replica may not write now."""
        request = _Request(method, path, body, query, content_type)
        await self._may_send(request)
        seconds = min(_TIMEOUT_SECONDS, self.may_write_for())
        if seconds <= 0:
            raise NotLeadingError(f"does not hold the lease at this moment, so {what} is not changed")
        self.wrote(verb, what)
        with self._noted(request):
            return await self._answer(request, seconds)

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: list[tuple[str, str]] | None = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        seconds: float = _TIMEOUT_SECONDS,
        at_once: bool = False,
    ) -> Object:
        """Send one request; it waits while the API server asks clients to send less.

        `at_once`: it does not wait, and its answer holds back no other, as for the Lease.
        """
        request = _Request(method, path, body, query, content_type, accept)
        if at_once:
            return await self._answer(request, seconds)
        await self._may_send(request)
        with self._noted(request):
            return await self._answer(request, seconds)

    async def _may_send(self, request: _Request) -> None:
        """Wait as long as the API server asks all clients to; ApiError if it asks longer for this request alone."""
        await self.limiter.wait()
        if held := self.limiter.held_back((request.method, request.path)):
            seconds, message = held
            raise ApiError(429, HELD_BACK, message, seconds)

    @contextlib.contextmanager
    def _noted(self, request: _Request) -> Iterator[None]:
        """Let the limiter know how `request` is answered, which is sent in the block."""
        name = request.method, request.path
        try:
            yield
        except ApiError as error:
            if error.reason != _NO_ANSWER:  # of this request alone: others are not held back
                self.limiter.answered(name, error.status, error.at_least, error.message)
            raise
        self.limiter.answered(name, 200)

    async def _answer(self, request: _Request, seconds: float) -> Object:
        """Send a request now, and return what it is answered within `seconds`; ApiError if that is a failure."""
        began = time.monotonic()
        sent = await self._api.param_serialize(
            request.method,
            request.path,
            query_params=request.query or [],
            header_params={"Accept": request.accept, "Content-Type": request.content_type},
            body=request.body,
            auth_settings=["BearerToken"],
        )
        try:
            response = await self._api.call_api(*sent, _request_timeout=aiohttp.ClientTimeout(total=seconds))
            data = await response.read()
        except TimeoutError:
            message = f"the API server gave no answer to {request.method} {request.path} within {seconds:.0f} s"
            hint = "" if request.method == "GET" else _WEBHOOKS  # admission is not asked about what is only read
            raise ApiError(0, _NO_ANSWER, message + hint) from None
        except (aiohttp.ClientError, OSError) as error:
            message = str(error) or type(error).__name__
            raise ApiError(0, "Unreachable", f"the API server cannot be reached: {message}") from None
        self.clock.note_date(response.headers.get("Date"), time.monotonic() - began)
        if response.status >= 300:
            failure = _api_error(response.status, data, retry_after_of(response.headers))
            if failure.status == 403:
                self.missing_rights.note(failure.message)
            if failure.status == 401:
                self.missing_rights.note_unauthorized(failure.message)
            raise failure
        return _parsed(data)


def _parsed(data: bytes) -> Object:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "kind" not in found:  # as from a proxy that shows a page of its own
        message = data[:200].decode(errors="replace")
        what = "something other than the API server answers, or its answer is cut off"
        raise ApiError(0, _NO_ANSWER, f"{what}: {message}")
    return found


def _api_error(status: int, data: bytes, retry_after: float | None) -> ApiError:
    try:
        answer = json.loads(data)
        reason, message = answer.get("reason") or str(status), answer.get("message") or f"HTTP {status}"
        causes = (answer.get("details") or {}).get("causes") or ()
        reasons = frozenset(str(each.get("reason")) for each in causes)
    except (ValueError, AttributeError):
        reason, message = str(status), f"HTTP {status}: {data[:200].decode(errors='replace')}"
        reasons = frozenset()
    if status not in _CODES_OF_DENIALS and _DENIAL.search(message):
        return ApiError(403, "Forbidden", message)
    explained = with_remedy(message) if status == 403 else message + _UNAUTHORIZED * (status == 401)
    return ApiError(status, reason, explained, retry_after, reasons)
