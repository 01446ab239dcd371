"""The fixtures of the tests of the C kernels."""

from __future__ import annotations

from c_kernels import kernels

__all__ = ["kernels"]
