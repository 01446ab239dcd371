"""Adds the machine's folders to a container of a development image before runc creates it.

`python -I -S add_mounts.py MOUNTS ARGUMENT…`, with the arguments of `runc create`; the script of `images.runtime_files`
calls it. MOUNTS is a JSON file: `images`, all names of the development images, and `mounts`, entries of the OCI runtime
specification. Containers of other images are not changed.
"""

import json
import sys
from pathlib import Path

IMAGE = "io.kubernetes.cri.image-name"
"""The annotation in which containerd says the image's name as the pod's manifest has it."""


def main(mounts: str, *arguments: str) -> None:
    added = json.loads(Path(mounts).read_text())
    path = Path(arguments[arguments.index("--bundle") + 1], "config.json")
    container = json.loads(path.read_text())
    if container.get("annotations", {}).get(IMAGE) in added["images"]:
        # A folder hides what was mounted below it before: the checkout may lie in /tmp, where a pod may have a volume.
        mounts = added["mounts"] + container["mounts"]
        container["mounts"] = sorted(mounts, key=lambda mount: len(Path(mount["destination"]).parts))
        path.write_text(json.dumps(container))


if __name__ == "__main__":
    main(*sys.argv[1:])
