"""Paths and addresses: the checkout, the user's cache, and the node's own view of both."""

import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
HOME = CHECKOUT / ".cache" / "cluster"
"""What stays in the checkout (git ignores it): kubeconfig, bin/, logs/."""

INSIDE = Path("/run/octavo")
"""The cluster's state folder as the node sees it, wherever it lies on the host: short, so unix sockets fit."""

NODE = "node-1"
NODE_IP = "10.244.255.1"
POD_CIDR = "10.244.0.0/16"
NODE_POD_CIDR = "10.244.0.0/24"
SERVICE_CIDR = "10.96.0.0/16"
KUBERNETES_IP = "10.96.0.1"
DNS_IP = "10.96.0.10"
API_PORT = 6443
DNS_READY_PORT = 8181
PROXY_HEALTH_PORT = 10256
CONTAINERD_SOCKET = Path("/run/containerd/containerd.sock")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def user_cache() -> Path:
    """Return the user's cache folder, where built programs outlive the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"
