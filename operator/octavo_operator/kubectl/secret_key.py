"""One API key of a Secret as `spec.auth.apiKeysSecretRef` names them: an entry for each client."""

from __future__ import annotations

import base64
import binascii

from octavo_operator.kubectl.client import Kubectl, KubectlError


def secret_key(kubectl: Kubectl, given: str) -> str:
    """Return the key of SECRET/ENTRY, or of SECRET if it has one entry; KubectlError if there is no such key."""
    name, _, entry = given.partition("/")
    data: dict[str, str] = kubectl.get("secret", name).get("data") or {}
    if not entry and len(data) == 1:
        [entry] = data
    if entry not in data:
        there = ", ".join(sorted(data)) or "none"
        raise KubectlError(
            f"--api-key-secret {given}: name one entry of the Secret {name}, as SECRET/ENTRY; it has {there}"
        )
    try:
        return base64.b64decode(data[entry], validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        raise KubectlError(
            f"--api-key-secret {given}: the entry {entry} is not text, so it cannot be an API key"
        ) from None
