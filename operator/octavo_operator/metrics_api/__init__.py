"""The metrics API: external.metrics.k8s.io, from the engines' own /metrics, so that an HPA needs nothing else."""
