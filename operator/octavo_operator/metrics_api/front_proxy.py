"""Authentication of the API server, the only permitted client: it has authorized the user before it passes one on.

Its certificate is signed by the authority that the ConfigMap kube-system/extension-apiserver-authentication names, and
carries one of the names that it lists: another authority's clients, or other clients of this one, prove nothing.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NAMESPACE, CONFIG_MAP = "kube-system", "extension-apiserver-authentication"


class NoAggregationError(Exception):
    """The API server is not set up for APIs of others, or the ConfigMap does not say how."""


@dataclass(frozen=True)
class FrontProxy:
    """The API server's identity as a client: a certificate signed by `authority` (PEM), for one of `names` if any."""

    authority: str
    names: frozenset[str]

    @classmethod
    def of(cls, config_map: Mapping[str, Any] | None) -> FrontProxy:
        """Read the settings from the ConfigMap; NoAggregationError if they are missing."""
        if config_map is None:
            raise NoAggregationError(
                f"there is no ConfigMap {NAMESPACE}/{CONFIG_MAP}: an API server that was started with "
                "--requestheader-client-ca-file creates it, also after it was deleted"
            )
        data = config_map.get("data") or {}
        authority = data.get("requestheader-client-ca-file")
        if not authority:
            raise NoAggregationError(
                f"ConfigMap {NAMESPACE}/{CONFIG_MAP} names no requestheader-client-ca-file: the API server must be "
                "started with --requestheader-client-ca-file for aggregated APIs to work"
            )
        names = data.get("requestheader-allowed-names") or "[]"
        try:
            found = json.loads(names)
        except ValueError:
            found = None
        if not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
            raise NoAggregationError(
                f"ConfigMap {NAMESPACE}/{CONFIG_MAP} has requestheader-allowed-names {names[:200]!r}, which is no list "
                "of names in JSON: delete the ConfigMap, and the API server creates it again within a minute"
            )
        return cls(authority, frozenset(found))

    def context(self) -> ssl.SSLContext:
        """Return a server's context that checks client certificates, where a client has one."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.authority)
        return context

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return True if this verified certificate of a connection (as `getpeercert` has it) is the API server's."""
        if not certificate:
            return False
        subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
        return not self.names or subject.get("commonName") in self.names
