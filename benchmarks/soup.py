"""How long rules take for 1,000 contributors of 100,000 parameters each, on two cores, beside what numpy takes.

Every figure is the best of several runs, in seconds and in CPU seconds of all threads; ratios are of CPU seconds, which other
work on the machine changes less. What merges are worth under attack, and beside other libraries, is not measured here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from report import Report, main

import gym_deltasoup as soup
from gym_deltasoup import Merger, merge_vectors

INPUTS, SIZE, HOSTILE = 1000, 100_000, 300


def timed(work: Callable[[], Any], times: int) -> dict[str, float]:
    """Return the least seconds and CPU seconds of some runs."""
    runs = []
    for _ in range(times):
        began, used = time.perf_counter(), time.process_time()
        work()
        runs.append((time.perf_counter() - began, time.process_time() - used))
    return {"seconds": min(each for each, _ in runs), "cpu_seconds": min(each for _, each in runs)}


def measure(report: Report, quick: bool) -> None:
    """Time numpy and the rules on the same numbers."""
    torch.set_num_threads(2)
    values = torch.randn(INPUTS, SIZE, generator=torch.Generator().manual_seed(0))
    array, times = values.numpy(), 2 if quick else 3

    def merged(merger: Merger) -> Callable[[], Any]:
        hostile = HOSTILE if merger.tolerates(INPUTS) else 0
        return lambda: merge_vectors(merger, values, hostile)

    found = {
        "numpy mean": timed(lambda: array.mean(0), times),
        "numpy sort": timed(lambda: np.sort(array, axis=0), times),
        "mean": timed(merged(soup.UniformSoup()), times),
        "trimmed mean": timed(merged(soup.TrimmedMean()), times),
        "default": timed(merged(soup.ByzantineRobust()), times),
        "median": timed(merged(soup.Median()), 1),
        "krum": timed(merged(soup.Krum()), 1),
    }
    report.figures |= {"inputs": INPUTS, "parameters": SIZE, "hostile": HOSTILE, **found}

    def ratio(one: str, other: str) -> float:
        return found[one]["cpu_seconds"] / found[other]["cpu_seconds"]

    report.figures["trimmed mean over numpy's sort"] = ratio("trimmed mean", "numpy sort")
    report.figures["default over numpy's sort"] = ratio("default", "numpy sort")
    report.check("mean over numpy's, CPU seconds", ratio("mean", "numpy mean"), at_most=2.0)
    report.check("trimmed mean, seconds", found["trimmed mean"]["seconds"], at_most=1.2)
    report.check("default rule, seconds", found["default"]["seconds"], at_most=4.0)


if __name__ == "__main__":
    main(measure, __doc__)
