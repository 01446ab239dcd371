"""A real Kubernetes on this machine, without Docker: for `make cluster` and for the tests.

etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, containerd, runc, kube-proxy and CoreDNS run in
network, process and mount namespaces of their own, and end with the process that started them. One thing is simulated:
the node reports eight GPUs.

Read in this order: `cluster` (how it comes up), `sandbox` (where it lives), `programs` (what runs), `images` (how pods
run this checkout's code), `client` and `conftest` (what tests see).
"""
