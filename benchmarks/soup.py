"""How long rules take for 1,000 contributors of 100,000 parameters each, on two cores, beside what numpy takes.

Every figure is the best of several runs, in seconds and in CPU seconds; ratios are of CPU seconds, which other
work on the machine changes less. The default rule is two products of matrices and two sorts, so it is held to what its products
take at the rate of this machine; beside numpy's sort, which has vector instructions on some machines alone, it is only
shown. `--peers` times rules of ByzFL and of Flower on the same vectors, of 100 contributors, where `GYM_ORACLES` and `GYM_FLOWER`
name the Pythons of environments that have them (`nox -s oracles`, `nox -s flower`). What merges are worth under attack is in
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
    # all mixtures, and distances, of which each pair has one
    products = (2 + 1) * INPUTS**2 * SIZE / matmul_rate("fp32")
    report.figures["default over numpy's sort, seconds"] = found["default"]["seconds"] / found["numpy sort"]["seconds"]
    report.figures["default over numpy's sort, CPU seconds"] = ratio("default", "numpy sort")
    report.check("default over its products, CPU seconds", found["default"]["cpu_seconds"] / products, at_most=2.0)
    report.check("trimmed mean, seconds", found["trimmed mean"]["seconds"], at_most=1.2)
    report.check("default rule, seconds", found["default"]["seconds"], at_most=4.0)


PEERS = {"ByzFL": ("GYM_ORACLES", "byzfl_rules.py"), "Flower": ("GYM_FLOWER", "flower_rules.py")}
RULES = {
    "mean": soup.UniformSoup(),
    "trimmed mean": soup.TrimmedMean(),
    "median": soup.Median(),
    "krum": soup.Krum(),
    "nnm, trimmed mean": soup.NNM(),
}


def peers(report: Report, quick: bool) -> None:
    """Time the rules of ByzFL and of Flower, and ours, on the same numbers; see that ours give what Flower's do."""
    there = {name: (os.environ[key], script) for name, (key, script) in PEERS.items() if key in os.environ}
    if not there:
        raise SystemExit("GYM_ORACLES or GYM_FLOWER has to name a Python: nox -s oracles, nox -s flower")
    values, hostile = torch.randn(FEW, SIZE, generator=torch.Generator().manual_seed(0)), FEW * HOSTILE // INPUTS
    torch.set_num_threads(2)
    ours, results = {}, {}
    for name, merger in RULES.items():
        runs = []
        for _ in range(3):
            began = time.perf_counter()
            results[name] = merge_vectors(merger, values, hostile if merger.tolerates(FEW) else 0).vector
            runs.append(time.perf_counter() - began)
        ours[name] = min(runs)
    report.figures |= {"inputs": FEW, "parameters": SIZE, "hostile": hostile, "gym, seconds": ours}
    with tempfile.TemporaryDirectory() as folder:
        file, into = Path(folder) / "values.npy", Path(folder) / "found.npz"
        np.save(file, values.numpy())
        for peer, (python, script) in there.items():
            command = [python, Path(__file__).parent / "peers" / script, file, str(hostile), into]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            theirs = json.loads(done.stdout)
            report.figures[f"{peer}, seconds"] = theirs
            for name, seconds in theirs.items():
                # which takes 5 ms; ours looks for broken inputs before, and adds in fp64
                most = 2.0 if name == "mean" else 1.25
                report.check(f"{name}: ours over that of {peer}", ours[name] / seconds, at_most=most)
        if into.exists():
            for name, vector in np.load(into).items():
                apart = float(np.abs(results[name].numpy() - vector).max())
                report.check(f"{name}: largest difference from Flower's", apart, at_most=1e-5)


if __name__ == "__main__":
    main(measure, __doc__, peers=peers)
