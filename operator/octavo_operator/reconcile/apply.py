"""The only door to the API server beside the watches: server-side apply, deletion of exactly what was seen, lists.

Built on the official client's transport (TLS, kubeconfig, rotating tokens); paths are ours, since all kinds are known.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import aiohttp
from kubernetes.aio import client, config

from octavo_operator.api.names import API_VERSION, FIELD_MANAGER, SERVICE_LABEL
from octavo_operator.reconcile.kinds import BY_NAME, LLMSERVICE, Kind
from octavo_operator.reconcile.queue import ExpectedError
from octavo_operator.reconcile.relist import Listing

Object = dict[str, Any]
logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 30
_CRD_POLL_SECONDS = 2
_PAGE = 500
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiError(ExpectedError):
    """The API server refused, or could not be reached (`status` 0). `reason` is its word, `message` its sentence."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    @property
    def transient(self) -> bool:
        """Whether the same request may well succeed a moment later: it says nothing about the object.

        500 is not among these: it is also what server-side apply answers for a field that its schema does not have.
        """
        return self.status in (0, 429, 502, 503, 504)


class Cluster:
    """The API server. Made by `connect`, ended by `close`."""

    def __init__(self, api: Any) -> None:
        self._api = api

    @classmethod
    async def connect(cls) -> Cluster:
        """By the pod's service account, or by KUBECONFIG outside of a cluster."""
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            await config.load_kube_config(client_configuration=configuration)
        return cls(client.ApiClient(configuration))

    async def close(self) -> None:
        """Closes the connections."""
        await self._api.close()

    async def credentials(self) -> dict[str, Any]:
        """The same credentials for the watches, in the words of `kopf.ConnectionInfo`; read anew at each call."""
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

    async def wait_for_crd(self) -> None:
        """Returns once the API server knows LLMServices; says so while it does not."""
        told = False
        while True:
            try:
                await self._request("GET", f"/apis/{API_VERSION}")
            except ApiError as error:
                if not told:
                    logger.warning("waiting for the CRD of %s (manifests/crd.yaml): %s", API_VERSION, error.message)
                    told = True
                await asyncio.sleep(_CRD_POLL_SECONDS)
            else:
                return

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The live object, or None."""
        try:
            return await self._request("GET", kind.path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list_all(self, kind: Kind, namespaces: Sequence[str]) -> Listing:
        """The metadata of all objects of the kind (children and pods: of our label), in the cluster or `namespaces`."""
        items: list[Object] = []
        versions = []
        for namespace in namespaces or [""]:
            pages = [page async for page in self._pages(kind, namespace)]
            versions.append(int(pages[0]["metadata"]["resourceVersion"]))
            items += [item for page in pages for item in page.get("items") or ()]
        return Listing(kind, min(versions), tuple(items))

    async def _pages(self, kind: Kind, namespace: str) -> AsyncIterator[Object]:
        query = [("limit", str(_PAGE))]
        if kind is not LLMSERVICE:
            query.append(("labelSelector", SERVICE_LABEL))
        continued = ""
        while True:
            more = [("continue", continued)] if continued else []
            page = await self._request("GET", kind.path(namespace), None, query + more, accept=_METADATA_ONLY)
            yield page
            continued = page["metadata"].get("continue") or ""
            if not continued:
                return

    async def apply(self, manifest: Object, subresource: str = "") -> Object:
        """Creates `manifest` or takes its fields over (force: our fields are ours); returns the live object."""
        metadata = manifest["metadata"]
        path = BY_NAME[manifest["kind"]].path(metadata["namespace"], metadata["name"]) + subresource
        query = [("fieldManager", FIELD_MANAGER), ("force", "true"), ("fieldValidation", "Strict")]
        return await self._request("PATCH", path, manifest, query, "application/apply-patch+yaml")

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Deletes the object of that uid and no other; one that is gone already is fine."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._request("DELETE", kind.path(namespace, name), options)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: list[tuple[str, str]] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Object:
        headers = {"Accept": accept, "Content-Type": content_type}
        request = await self._api.param_serialize(
            method, path, query_params=query or [], header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        try:
            response = await self._api.call_api(
                *request, _request_timeout=aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
            )
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiError(
                0, "Unreachable", f"the API server cannot be reached: {error or type(error).__name__}"
            ) from None
        if response.status >= 300:
            raise _api_error(response.status, data)
        return cast(Object, json.loads(data))


def _api_error(status: int, data: bytes) -> ApiError:
    try:
        answer = json.loads(data)
        return ApiError(status, answer.get("reason") or str(status), answer.get("message") or f"HTTP {status}")
    except (ValueError, AttributeError):
        return ApiError(status, str(status), f"HTTP {status}: {data[:200].decode(errors='replace')}")
