"""A stand-in engine with faults: it stalls, hangs while draining, or fails its liveness probe.

`octavo-operator local` has to handle each fault; the served name in the arguments chooses the fault.
"""

from __future__ import annotations

import http.server
import signal
import subprocess
import sys
import threading
import time

ARGUMENTS = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[3:] if "=" in argument)
BEHAVIOUR = ARGUMENTS["served-model-name"]
HEALTH = {"/health/startup": BEHAVIOUR != "never-starts", "/health/ready": True, "/health/live": BEHAVIOUR != "stalls"}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if HEALTH.get(self.path, True) else 503)
        self.end_headers()
        self.wfile.write(b'{"phase": "loading", "progress": 0.4, "detail": "4 MiB of 10 MiB"}')

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    if BEHAVIOUR.startswith("exits-"):
        sys.exit(int(BEHAVIOUR.removeprefix("exits-")))
    if BEHAVIOUR == "leaves-a-child":
        subprocess.Popen(["sleep", "600"])
    server = http.server.ThreadingHTTPServer((ARGUMENTS["host"], int(ARGUMENTS["port"])), Handler)
    if BEHAVIOUR == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=drain, args=[server]).start())
    server.serve_forever()


def drain(server: http.server.ThreadingHTTPServer) -> None:
    time.sleep(0.3)
    print("drained", flush=True)
    server.shutdown()


if __name__ == "__main__":
    main()
