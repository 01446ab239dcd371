"""The device's busy share: the time in which any of its kernels runs, divided by the elapsed time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from bench.gpu.result import Figure, timed
from bench.gpu.steps import Steady

_KERNELS = 12
"""The number of kernels that are listed for each case, the longest ones."""


def union_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals; overlaps are counted once."""
    total, end = 0.0, float("-inf")
    for begin, stop in sorted(intervals):
        total += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return total


def kernel_seconds(profile: Any) -> float | None:
    """Return the seconds in which the device ran kernels or copied memory; None if the profile has no such events."""
    from torch.autograd import DeviceType

    spans = [
        (event.time_range.start / 1e6, event.time_range.end / 1e6)
        for event in profile.events()
        if event.device_type == DeviceType.CUDA
    ]
    return union_seconds(spans) if spans else None


def seconds_by_kernel(profile: Any) -> dict[str, float]:
    """Return the seconds of each kernel of the device by its name, the longest first."""
    from torch.autograd import DeviceType

    found: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == DeviceType.CUDA:
            found[short_name(event.name)] += (event.time_range.end - event.time_range.start) / 1e6
    return dict(found.most_common())


def kernel_figures(model: str, case: str, steady: Steady, steps: int) -> Iterator[Figure]:
    """Yield the time of the longest kernels in a step, from a profile of so many steps."""
    for kernel, seconds in list(seconds_by_kernel(steady.profile).items())[:_KERNELS]:
        yield timed(model, "kernel", f"{case}, {kernel}", [seconds / steps], None, "of a step, by the profiler")


def short_name(kernel: str) -> str:
    """Return the function in a kernel's name, without the types, which are most of the name in libraries of C++."""
    return kernel.removeprefix("void ").partition("<")[0].partition("(")[0].strip()[:80] or kernel[:80]


def busy_share(steady: Steady, steps: int) -> tuple[float, str]:
    """Return the busy share, and how it was measured.

    The kernels' time is from a profiled round, the elapsed time from the rounds without a profiler, which is slower:
    kernels take equally long under the profiler, but the gaps between them may be longer.
    """
    wall = sorted(steady.wall)[len(steady.wall) // 2]
    kernels = None if steady.profile is None else kernel_seconds(steady.profile)
    if kernels is None:
        device = sorted(steady.device)[len(steady.device) // 2]
        return device / wall, "no kernels were seen by the profiler: between the first and the last event of each step"
    within = kernels / (steps * steady.profiled_wall)
    return kernels / steps / wall, f"by PyTorch's profiler, under which itself the share is {within:.3f}"
