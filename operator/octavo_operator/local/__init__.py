"""One LLMService's engine as a process on this machine: the rendered container without a cluster.

This package does a part of what a kubelet does: arguments, environment, volumes as folders, the three probes, SIGTERM
and the time to drain. These things differ from a pod: the engine listens on 127.0.0.1; there is no image, no resource
limit and no preStop pause (no Service has to forget the process first); the content of Secrets is read from the
environment; of the other containers only those run that fetch the model, before the engine, and adapters, beside it; a
process that fails is not started again.
"""
