"""The C kernels for arm64, called under qemu by tests that run on this machine."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".cache" / "arm64"
"""Where the two C programs of this package are compiled."""
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
