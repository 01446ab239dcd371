"""The command lines and files of the node's programs. Paths are those that the node sees.

Settings that differ from Kubernetes' defaults are for speed (no fsync, no leader election, quick autoscaling), or for a
machine without systemd, registry or much disk space.
"""

import json
from collections.abc import Mapping
from typing import Any

import yaml

from . import build
from .layout import (
    API_PORT,
    CONTAINERD_SOCKET,
    DNS_IP,
    DNS_READY_PORT,
    INSIDE,
    NODE,
    NODE_IP,
    NODE_POD_CIDR,
    POD_CIDR,
    PROXY_HEALTH_PORT,
    SERVICE_CIDR,
)

PKI = INSIDE / "pki"
KUBECONFIG = INSIDE / "kubeconfig"
ETCD_URL = "http://127.0.0.1:2379"
PAUSE_IMAGE = "localhost/octavo-pause:dev"
RUNTIME = INSIDE / "runc-for-development"
"""What containerd runs as runc."""

ETCD = {
    "data-dir": INSIDE / "etcd",
    "listen-client-urls": ETCD_URL,
    "advertise-client-urls": ETCD_URL,
    "listen-peer-urls": "http://127.0.0.1:0",
    "unsafe-no-fsync": True,
    "log-level": "warn",
}

API_SERVER = {
    "etcd-servers": ETCD_URL,
    "secure-port": API_PORT,
    "bind-address": "0.0.0.0",
    "advertise-address": NODE_IP,
    "tls-cert-file": PKI / "apiserver.crt",
    "tls-private-key-file": PKI / "apiserver.key",
    "client-ca-file": PKI / "ca.crt",
    "authorization-mode": "RBAC",
    "allow-privileged": True,
    "service-cluster-ip-range": SERVICE_CIDR,
    "service-account-issuer": "https://kubernetes.default.svc",
    "service-account-key-file": PKI / "service-accounts.pub",
    "service-account-signing-key-file": PKI / "service-accounts.key",
    # The aggregation layer: a metrics API in a pod is reached through the API server.
    "requestheader-client-ca-file": PKI / "ca.crt",
    "requestheader-allowed-names": "front-proxy",
    "requestheader-username-headers": "X-Remote-User",
    "requestheader-group-headers": "X-Remote-Group",
    "requestheader-extra-headers-prefix": "X-Remote-Extra-",
    # ... by the pod's own address: the node has no default route, and so none to a service's.
    "enable-aggregator-routing": True,
    "proxy-client-cert-file": PKI / "front-proxy.crt",
    "proxy-client-key-file": PKI / "front-proxy.key",
    "kubelet-client-certificate": PKI / "admin.crt",
    "kubelet-client-key": PKI / "admin.key",
    "kubelet-preferred-address-types": "InternalIP",
    "enable-priority-and-fairness": False,
}

CONTROLLER_MANAGER = {
    "kubeconfig": KUBECONFIG,
    "leader-elect": False,
    "bind-address": "127.0.0.1",
    "root-ca-file": PKI / "ca.crt",
    "service-account-private-key-file": PKI / "service-accounts.key",
    "kube-api-qps": 1000,
    "kube-api-burst": 2000,
    "controllers": "*,-node-ipam-controller",
    "flex-volume-plugin-dir": INSIDE / "volume-plugins",
    "horizontal-pod-autoscaler-sync-period": "1s",
    "horizontal-pod-autoscaler-initial-readiness-delay": "0s",
    "horizontal-pod-autoscaler-downscale-stabilization": "5s",
}

SCHEDULER = {
    "kubeconfig": KUBECONFIG,
    "leader-elect": False,
    "bind-address": "127.0.0.1",
    "kube-api-qps": 1000,
    "kube-api-burst": 2000,
}

KUBELET = {
    "config": INSIDE / "kubelet.yaml",
    "kubeconfig": KUBECONFIG,
    "hostname-override": NODE,
    "node-ip": NODE_IP,
    "root-dir": INSIDE / "kubelet",
    "cert-dir": INSIDE / "kubelet-pki",
}

COMMANDS: Mapping[str, Mapping[str, object]] = {
    "etcd": ETCD,
    "kube-apiserver": API_SERVER,
    "containerd": {"config": INSIDE / "containerd.toml"},
    "kube-controller-manager": CONTROLLER_MANAGER,
    "kube-scheduler": SCHEDULER,
    "kubelet": KUBELET,
    "kube-proxy": {"config": INSIDE / "kube-proxy.yaml", "hostname-override": NODE},
    "coredns": {"conf": INSIDE / "Corefile"},
}
"""Program → flags."""


def command(name: str, components: tuple[build.Component, ...]) -> list[str]:
    """Return the command line of a program of the node, which is built by one of `components`."""
    prefix = "-" if name == "coredns" else "--"
    flags = (f"{prefix}{flag}={_flag_value(value)}" for flag, value in COMMANDS[name].items())
    return [str(build.program(name, components)), *flags]


def files(control_group: str) -> dict[str, str]:
    """The configuration files, by their path below the state folder; pods live in `control_group`."""
    return {
        "kubelet.yaml": yaml.safe_dump(kubelet_configuration(control_group)),
        "kube-proxy.yaml": yaml.safe_dump(PROXY_CONFIGURATION),
        "containerd.toml": containerd_configuration(),
        "cni/10-pods.conflist": json.dumps(POD_NETWORK),
        "Corefile": COREFILE,
        "resolv.conf": "",  # the node has no name server: no name of the host's network reaches a pod
    }


def kubelet_configuration(control_group: str) -> dict[str, Any]:
    never = dict.fromkeys(("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%")
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(PKI / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{control_group}",  # two clusters on one machine must not clean up each other's pods
        "failCgroupV1": False,
        "failSwapOn": False,
        "featureGates": {"KubeletInUserNamespace": True},  # what root may not do here is a warning
        "oomScoreAdj": 0,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "evictionHard": never,
        "imageGCHighThresholdPercent": 100,  # an image that is removed here cannot be pulled again
        "imageGCLowThresholdPercent": 99,
        "clusterDNS": [DNS_IP],
        "clusterDomain": "cluster.local",
        "resolvConf": str(INSIDE / "resolv.conf"),
        "podLogsDir": str(INSIDE / "pod-logs"),
        "volumePluginDir": str(INSIDE / "volume-plugins"),
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "5s",
    }


PROXY_CONFIGURATION: dict[str, Any] = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "nftables",
    "clusterCIDR": POD_CIDR,
    "clientConnection": {"kubeconfig": str(KUBECONFIG)},
    "conntrack": {"maxPerCore": 0},
    "healthzBindAddress": f"{NODE_IP}:{PROXY_HEALTH_PORT}",
}

POD_NETWORK: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "ptp",
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": str(INSIDE / "pod-addresses"),
                "ranges": [[{"subnet": NODE_POD_CIDR}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}

COREFILE = f"""
.:53 {{
    bind {NODE_IP}
    errors
    ready {NODE_IP}:{DNS_READY_PORT}
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {KUBECONFIG}
    }}
    cache 5
}}
"""


def containerd_configuration() -> str:
    """containerd.toml: overlayfs, runc without systemd, and a sandbox image of our own, as no registry is reachable."""
    cri = "plugins.'io.containerd.cri.v1"
    return f"""
version = 3
root = "{INSIDE / "containerd"}"
state = "/run/containerd"
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins.'io.containerd.internal.v1.opt']
path = "{INSIDE / "containerd-opt"}"
[{cri}.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"
[{cri}.runtime']
restrict_oom_score_adj = true
disable_apparmor = true
[{cri}.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "{RUNTIME}"
[{cri}.runtime'.cni]
bin_dirs = ["{build.CNI.folder}"]
conf_dir = "{INSIDE / "cni"}"
"""


def _flag_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
