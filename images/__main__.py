"""Builds the container images with docker if its daemon runs, or else with buildah, which needs root but no daemon.

A machine without docker may not reach a registry either, so for buildah debootstrap makes the base image once. In both
cases the image is also saved as .cache/images/NAME.tar in the format of `docker save`, for `ctr images import`, the
cluster of `make cluster`, or a push. Beside it, NAME.cdx.json lists what is in the image (`images/sbom.py`).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import octavo_operator
from images import sbom

CHECKOUT = Path(__file__).resolve().parents[1]
ARCHIVES = CHECKOUT / ".cache" / "images"
TARGETS = ("operator", "engine")
BASE = "localhost/octavo-base:bookworm"
BUILDAH = ("buildah", "--storage-driver", "overlay")
CA_INSIDE = "/run/host-ca.crt"
# Files that debian:bookworm-slim omits too, both now and from packages that are installed later.
_NOT_SLIM = ("usr/share/groff", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man")
_EMPTIED = ("var/cache/apt", "var/lib/apt/lists")
_DPKG = """path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
""" + "".join(f"path-exclude /{folder}/*\n" for folder in _NOT_SLIM)


class ImageError(Exception):
    """An image cannot be built; the message names what is missing."""


def main() -> int:
    """Entry point of `python -m images`."""
    parser = argparse.ArgumentParser(prog="python -m images", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--tag", default=octavo_operator.__version__, help="tag of the images (default: %(default)s)")
    base = "image to build on, best with its digest, as debian:bookworm-slim@sha256:... (default: the Dockerfile's, or "
    parser.add_argument("--base", default="", help=base + "a Debian that debootstrap makes)")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    try:
        for target in options.targets or TARGETS:
            _build(target, f"octavo-{target}:{options.tag}", options.base)
    except (ImageError, subprocess.CalledProcessError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


def _build(target: str, name: str, base: str) -> None:
    _say(f"builds {name}" + (" (torch and CUDA: some minutes, 20 GB of disk)" if target == "engine" else ""))
    started = time.monotonic()
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    archive = ARCHIVES / f"{target}.tar"
    if _docker_answers():
        given = [f"--build-arg=BASE={base}"] if base else []
        _run("docker", "build", *given, "--target", target, "--tag", name, ".")
        _run("docker", "save", "--output", str(archive), name)
    else:
        _build_with_buildah(target, name, base, archive)
    _say(f"{archive}: {archive.stat().st_size / 1e6:,.0f} MB")
    bill = sbom.write(archive, *name.split(":"))
    _say(f"{bill}: what is in it, in CycloneDX's format")
    _say(f"{name} is built, in {time.monotonic() - started:.0f} s")


def _docker_answers() -> bool:
    return bool(shutil.which("docker")) and _succeeds("docker", "version")


def _build_with_buildah(target: str, name: str, base: str, archive: Path) -> None:
    missing = [program for program in ("buildah", "debootstrap") if not shutil.which(program)]
    if missing or os.geteuid() != 0:
        needed = f"buildah builds the images: apt-get install {' '.join(missing)}" if missing else "buildah needs root"
        raise ImageError(f"no docker daemon answers; start one. Without it {needed}")
    if not base:
        _make_base()
    pull = "--pull" if base else "--pull-never"
    _run(*BUILDAH, "bud", "--isolation=chroot", "--layers", pull, f"--build-arg=BASE={base or BASE}",
         *_certificates(), f"--target={target}", f"--tag={name}", ".")  # fmt: skip
    archive.unlink(missing_ok=True)  # buildah refuses to overwrite an existing file
    _run(*BUILDAH, "push", "--quiet", name, f"docker-archive:{archive}:docker.io/library/{name}")


def _make_base() -> None:
    """Make a Debian like debian:bookworm-slim, unless it was made before."""
    if _output(*BUILDAH, "images", "--quiet", "--filter", f"reference={BASE}"):
        return
    _say("makes a Debian with debootstrap, once (about a minute)")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        with (Path(scratch) / "log").open("w+") as log:
            command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(root)]
            if subprocess.run(command, stdout=log, stderr=log, check=False).returncode:
                log.seek(0)
                raise ImageError(f"debootstrap failed:\n{log.read()[-2000:]}")
        make_slim(root)
        container = _output(*BUILDAH, "from", "scratch")
        _run(*BUILDAH, "add", "--quiet", container, str(root), "/")
        _run(*BUILDAH, "commit", "--quiet", "--rm", container, BASE)


def make_slim(root: Path) -> None:
    """Delete the files that debian:bookworm-slim omits, and configure dpkg to omit them from now on."""
    for folder in (*_NOT_SLIM, *_EMPTIED):
        shutil.rmtree(root / folder, ignore_errors=True)
    for path in (root / "usr/share/doc").rglob("*"):
        if path.name != "copyright" and not path.is_dir():
            path.unlink()
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_DPKG)
    (root / "etc/apt/apt.conf.d/keep-nothing").write_text(
        'APT::Keep-Downloaded-Packages "false";\nDir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
    )


def _certificates() -> list[str]:
    """The host's CA certificates for machines behind a TLS proxy: trusted while building and not kept in the image."""
    bundle = os.environ.get("SSL_CERT_FILE", "")
    if not bundle:
        return []
    named = [f"--build-arg={name}={CA_INSIDE}" for name in ("SSL_CERT_FILE", "PIP_CERT")]
    return [f"--volume={Path(bundle).resolve()}:{CA_INSIDE}:ro", *named]


def _succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(*command: str) -> None:
    subprocess.run(command, cwd=CHECKOUT, check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout.strip()


def _say(line: str) -> None:
    print(f"images: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
