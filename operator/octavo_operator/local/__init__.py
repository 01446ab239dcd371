"""One LLMService's engine as a process on this machine: the rendered container without a cluster.

What a kubelet would do is done here in small: arguments, environment, volumes as folders, the three probes, SIGTERM and
the time to drain. What differs from a pod: it listens on 127.0.0.1, there is no image, no resource limit and no preStop
pause (no Service has to forget the process first); what Secrets hold is read from the environment; of other containers
only those are run that fetch the model, before the engine, and adapters, beside it; what fails is not started again.
"""
