"""Settings for all test processes, made before torch is imported."""

import os

from octavo_engine.openmp import sleep_soon

# Threads that spin while they wait for each other make small steps 15 times as slow on a machine with other work.
# There is such work in `make test`: the cluster's pods run beside all other tests.
sleep_soon(os.environ)
