"""What the suite costs, in CPU seconds by file: `python tests/cost.py -n 2 --dist worksteal`, or any arguments of pytest.

Wall time says little on a machine that others use. Here each test is charged the user and system time of its process and of the
children that it waited for. The rest of a worker is the line `imports and collection`; what a child leaves running is not seen.
With GYM_COST a file gets a line for each test as soon as it is done: its seconds and its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gym_testkit import warm

COST = pytest.StashKey[float]()
spent: Counter[str] = Counter()


def cpu() -> float:
    """Return the CPU seconds of this process, of the children that it waited for and of those that were forked warm."""
    return sum(os.times()[:4]) + warm.cpu_seconds()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.stash[COST] = cpu()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    now = cpu()
    report.cpu_seconds = now - item.stash[COST]
    item.stash[COST] = now
    return report


def pytest_runtest_logreport(report):
    spent[report.nodeid] += getattr(report, "cpu_seconds", 0.0)
    if "GYM_COST" in os.environ and report.when == "teardown" and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["GYM_COST"], "a", encoding="utf-8") as file:
            file.write(f"{spent[report.nodeid]:.2f}\t{report.nodeid}\n")


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu_seconds"] = cpu()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    spent["workers"] += getattr(node, "workeroutput", {}).get("cpu_seconds", 0.0)


def pytest_terminal_summary(terminalreporter):
    total = spent.pop("workers", 0.0) or cpu()
    files: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for name, seconds in spent.items():
        files[name.partition("::")[0]] += seconds
        cases[name.partition("::")[0]] += 1
    files["imports and collection"] = total - sum(files.values())
    write = terminalreporter.write_line
    write(f"{total:8.1f} CPU seconds in all")
    for name, seconds in files.most_common():
        write(f"{seconds:8.1f} {cases[name]:5d}  {name}")


if __name__ == "__main__":
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "-p", "cost", *sys.argv[1:]]
    sys.exit(subprocess.run(command, env={**os.environ, "PYTHONPATH": path}).returncode)
