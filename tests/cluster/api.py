"""An HTTP client for an API server, from the host: client certificates or a token."""

import ssl
from pathlib import Path

import httpx2


def connect(
    server: str,
    *,
    ca: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    authorization: str | None = None,
    timeout: float = 60.0,
) -> httpx2.Client:
    """Return a client whose relative URLs are the API server's paths.

    `timeout` in seconds. The host's proxies are ignored.
    """
    context = ssl.create_default_context(cafile=ca)
    if certificate:
        context.load_cert_chain(certificate, key)
    headers = {"Authorization": authorization} if authorization else {}
    return httpx2.Client(base_url=server, verify=context, headers=headers, timeout=timeout, trust_env=False)


def connect_with(kubeconfig: Path) -> httpx2.Client:
    """Return a client with whatever credentials the current context of `kubeconfig` has."""
    import kubernetes.client  # a second of imports: only for those who come with a kubeconfig
    import kubernetes.config

    settings = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=settings)
    token = settings.auth_settings().get("BearerToken")
    return connect(
        settings.host,
        ca=_path(settings.ssl_ca_cert),
        certificate=_path(settings.cert_file),
        key=_path(settings.key_file),
        authorization=token["value"] if token else None,
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None
