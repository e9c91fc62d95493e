"""`pytest --gym-dist`: the laws are collected without a test of the author's, read as sentences, and fail as tests."""

from __future__ import annotations

import os
import subprocess

import pytest

from gym_testkit import warm
from gym_testkit.metadata_files import write_distribution

MODULE = '''
from typing import ClassVar
from gym_optim.kinds import Scheduler

class Flat(Scheduler):
    """Stays."""

    target: ClassVar[str] = "toy_flat:build"
    ends_at: ClassVar[float | None] = {end}

def build(config, total, warmup):
    return lambda step: min(1.0, (step + 1) / warmup) if warmup else 1.0
'''
README = """# Toy

```yaml
model: tiny
algorithm: nobody-has-this
scheduler: flat
```
"""


@pytest.fixture
def install(tmp_path):
    def write(end: float, head: str = "", readme: str = README):
        modules, points = (
            {"toy_flat": head + MODULE.replace("{end}", str(end))},
            {"gym.schedulers": {"flat": "toy_flat:Flat"}},
        )
        write_distribution(tmp_path / "site", "toy-flat", points, modules, description=readme)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ("-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments)
        return warm.run(*command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")}, timeout=120)

    write.run = run
    return write


def test_healthy_package_passes_and_laws_read_as_sentences(install):
    install(1.0)
    done = install.run("--gym-dist", "toy-flat")
    assert done.returncode == 0, done.stdout
    assert "PASSED toy-flat::scheduler law: ends where declared [flat]" in done.stdout
    assert "PASSED toy-flat::package law: configuration imports neither torch nor numpy [toy-flat]" in done.stdout
    assert "needs another package" in done.stdout and "nobody-has-this" in done.stdout


def test_broken_law_fails(install):
    install(0.5)
    done = install.run("--gym-dist", "toy-flat", "-k", "scheduler")
    assert done.returncode == 1
    assert "FAILED toy-flat::scheduler law: ends where declared [flat]" in done.stdout


IGNORED = '''
    power: float = 0.5
    """Read by nobody."""
    waited: float = 0.5
    """Read by a helper."""

def helper(config):
    return config.waited
'''


@pytest.mark.parametrize(("head", "code"), [("", 1), ("def store(config):\n    return config.model_dump()\n", 0)])
def test_an_option_that_no_code_reads_is_named(install, head, code):
    install(f"1.0\n{IGNORED}", head=head)
    done = install.run("--gym-dist", "toy-flat", "-k", "option and read")
    assert done.returncode == code, done.stdout
    assert ("Flat.power is read by no code of toy_flat" in done.stdout) == bool(code)


def test_heavy_import_is_named(install):
    install(1.0, head="import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n")
    done = install.run("--gym-dist", "toy-flat", "-k", "imports")
    assert done.returncode == 1
    assert "importing toy_flat imports torch" in done.stdout


def test_module_that_raises_is_a_failed_law_and_not_a_crash(install):
    install(1.0, head="raise RuntimeError('no')\n")
    done = install.run("--gym-dist", "toy-flat")
    assert done.returncode == 1
    assert "FAILED toy-flat::package law: every entry point leads" in done.stdout
    assert "RuntimeError: no" in done.stdout
    assert "toy-flat::readme law: its recipes validate" in done.stdout


def test_unknown_distribution_is_an_error(install):
    done = install.run("--gym-dist", "nobody")
    assert done.returncode != 0
    assert "no distribution nobody is installed" in done.stdout


def test_without_the_option_nothing_is_added(install, tmp_path):
    (tmp_path / "test_own.py").write_text(
        "def test_own(tiny_model):\n    assert (tiny_model / 'tokenizer.json').exists()\n"
    )
    done = install.run()
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_with_a_path_own_tests_run_too(install, tmp_path):
    install(1.0)
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    done = install.run("--gym-dist", "toy-flat", "test_own.py", "-k", "test_own or ends")
    assert "2 passed" in done.stdout, done.stdout
