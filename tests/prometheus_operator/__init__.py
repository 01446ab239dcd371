"""The real Prometheus Operator and the Prometheus that it runs, with Octavo's monitors."""
