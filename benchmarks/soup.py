"""How long rules take for 1,000 contributors of 100,000 parameters each, on two cores, beside what numpy takes.

Every figure is the best of several runs, in seconds and in CPU seconds; ratios are of CPU seconds, which other
work on the machine changes less. The default rule is two products of matrices and two sorts, so it is also compared with what
its products take at the rate of this machine. `--peers` times rules of ByzFL on the same vectors, of 100 contributors, where
`GYM_ORACLES` names the Python of an environment that has it (`nox -s oracles`). What merges are worth under attack is in
`soup_attacks.py`, their memory in `soup_disk.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from report import Report, main, matmul_rate

import gym_deltasoup as soup
from gym_deltasoup import Merger, merge_vectors

INPUTS, SIZE, HOSTILE = 1000, 100_000, 300
FEW = 100  #: contributors beside other libraries


def timed(work: Callable[[], Any], times: int) -> dict[str, float]:
    """Return the least seconds with two threads, and CPU seconds with one: a thread that waits counts as well."""
    found = {}
    for threads, name, clock in ((2, "seconds", time.perf_counter), (1, "cpu_seconds", time.process_time)):
        torch.set_num_threads(threads)
        runs = []
        for _ in range(times):
            began = clock()
            work()
            runs.append(clock() - began)
        found[name] = min(runs)
    return found


def measure(report: Report, quick: bool) -> None:
    """Time numpy and the rules on the same numbers."""
    values = torch.randn(INPUTS, SIZE, generator=torch.Generator().manual_seed(0))
    array, times = values.numpy(), 2 if quick else 4

    def merged(merger: Merger) -> Callable[[], Any]:
        hostile = HOSTILE if merger.tolerates(INPUTS) else 0
        return lambda: merge_vectors(merger, values, hostile)

    found = {
        "numpy mean": timed(lambda: array.mean(0), times),
        "numpy sort": timed(lambda: np.sort(array, axis=0), times),
        "mean": timed(merged(soup.UniformSoup()), times),
        "trimmed mean": timed(merged(soup.TrimmedMean()), times),
        "median": timed(merged(soup.Median()), 1),
        "krum": timed(merged(soup.Krum()), 1),
        "default": timed(merged(soup.ByzantineRobust()), times),
    }
    report.figures |= {"inputs": INPUTS, "parameters": SIZE, "hostile": HOSTILE, **found}

    def ratio(one: str, other: str) -> float:
        return found[one]["cpu_seconds"] / found[other]["cpu_seconds"]

    report.check("mean over numpy's, CPU seconds", ratio("mean", "numpy mean"), at_most=2.0)
    report.check("trimmed mean over numpy's sort, CPU seconds", ratio("trimmed mean", "numpy sort"), at_most=2.9)
    torch.set_num_threads(1)
    products = (
        (2 + 1) * INPUTS**2 * SIZE / matmul_rate("fp32")
    )  # all mixtures, and distances, of which each pair has one
    report.figures["default over numpy's sort, seconds"] = found["default"]["seconds"] / found["numpy sort"]["seconds"]
    report.check("default over numpy's sort, CPU seconds", ratio("default", "numpy sort"), at_most=9.5)
    report.check("default over its products, CPU seconds", found["default"]["cpu_seconds"] / products, at_most=2.0)
    report.check("trimmed mean, seconds", found["trimmed mean"]["seconds"], at_most=1.2)
    report.check("default rule, seconds", found["default"]["seconds"], at_most=4.0)


def peers(report: Report, quick: bool) -> None:
    """Time the rules of ByzFL and ours on the same numbers."""
    python = os.environ.get("GYM_ORACLES")
    if python is None:
        raise SystemExit("GYM_ORACLES has to name the Python of an environment with ByzFL: nox -s oracles")
    values, hostile = torch.randn(FEW, SIZE, generator=torch.Generator().manual_seed(0)), FEW * HOSTILE // INPUTS
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "values.npy"
        np.save(file, values.numpy())
        script = Path(__file__).parent / "peers" / "byzfl_rules.py"
        done = subprocess.run([python, script, file, str(hostile)], capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout)
    torch.set_num_threads(2)
    rules = {
        "trimmed mean": soup.TrimmedMean(),
        "median": soup.Median(),
        "krum": soup.Krum(),
        "nnm, trimmed mean": soup.NNM(),
    }
    for name, merger in rules.items():
        runs = []
        for _ in range(3):
            began = time.perf_counter()
            merge_vectors(merger, values, hostile)
            runs.append(time.perf_counter() - began)
        report.figures[f"{name}, seconds"] = {"gym": min(runs), "ByzFL": theirs[name]}
        report.check(f"{name}: ours over that of ByzFL", min(runs) / theirs[name], at_most=1.0)


if __name__ == "__main__":
    main(measure, __doc__, peers=peers)
