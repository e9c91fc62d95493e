"""The pytest plugin: `pytest --gym-dist gym-foo` runs the laws; its fixtures serve the tests of plugin authors.

It is imported by every pytest of the environment, so it imports nothing but pytest until it is asked for something.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gym_testkit.bench import Bench
    from gym_testkit.law import Law

pytest.register_assert_rewrite("gym_testkit.laws", "gym_testkit.weights", "gym_testkit.distribution")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--gym-dist`."""
    parser.getgroup("gym").addoption(
        "--gym-dist",
        action="append",
        default=[],
        metavar="NAME",
        help="hold this installed distribution to the laws of Gym (may be repeated); without paths nothing else is run",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect only the laws where no path was asked for."""
    if config.getoption("gym_dist"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: more threads only wait for each other
        if config.args_source is not pytest.Config.ArgsSource.ARGS:
            config.args = []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Have the workers of pytest-xdist, which take over this environment, share the servers of warm processes."""
    from gym_testkit import warm

    warm.address()
    warm.address(warm.LIGHT)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the laws before anything is selected by `-k`."""
    for name in config.getoption("gym_dist"):
        report = config.hook.pytest_make_collect_report(collector=LawsOf.from_parent(session, name=name, nodeid=name))
        config.hook.pytest_collectreport(report=report)
        items.extend(report.result)


class LawsOf(pytest.Collector):
    """All laws of one distribution."""

    def collect(self) -> Iterator[LawItem]:
        """Make an item for each law and subject."""
        from importlib.metadata import PackageNotFoundError

        from gym_testkit.distribution import Distribution
        from gym_testkit.law import cases

        try:
            dist = Distribution(self.name)
        except PackageNotFoundError:
            raise self.CollectError(f"no distribution {self.name} is installed") from None
        if not dist.entry_points and not dist.scripts:
            raise self.CollectError(f"{self.name} has no entry point in a group `gym.*`, and no script")
        for title, law, subject in cases(dist):
            yield LawItem.from_parent(self, name=title, law=law, subject=subject)


class LawItem(pytest.Item):
    """One law, asked of one subject."""

    def __init__(self, *, law: Law, subject: Any, **kwargs: Any) -> None:
        """Hold the law and what it is asked of."""
        super().__init__(**kwargs)
        self.law = law
        self.subject = subject

    def runtest(self) -> None:
        """Check the law in a fresh directory."""
        from tempfile import TemporaryDirectory

        from gym_testkit.bench import Bench
        from gym_testkit.caches import own_cache

        with TemporaryDirectory(prefix="gym-law-") as directory, pytest.MonkeyPatch.context() as patch:
            patch.setenv("GYM_CACHE", own_cache(Path(directory, "cache")))
            self.law.check(self.subject, Bench(Path(directory)))

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Name the place and the law."""
        code = self.law.check.__code__
        return code.co_filename, code.co_firstlineno, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Begin the traceback at the law."""
        excinfo.traceback = excinfo.traceback.cut(path=self.law.check.__code__.co_filename)
        return super().repr_failure(excinfo, style or "short")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Tiny models, tiny data and tiny runs, all under `tmp_path`, the cache too: a `gym_testkit.bench.Bench`."""
    from gym_testkit.bench import Bench
    from gym_testkit.caches import own_cache

    monkeypatch.setenv("GYM_CACHE", own_cache(tmp_path / "cache"))
    return Bench(tmp_path)


@pytest.fixture
def tiny_model(bench: Bench) -> Path:
    """Directory of a tiny random Qwen3 model with a byte-level tokenizer and a chat template."""
    return bench.model()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of such a model, for all tests together, which leave it as it is."""
    from gym_testkit.tiny import write_model

    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def run_recipe(bench: Bench) -> Any:
    """Function `run_recipe(recipe, **train)` that carries out a recipe on the tiny model and returns a `Finished`."""
    return bench.run


@pytest.fixture
def gym_cli(bench: Bench) -> Any:
    """Function `gym_cli(*arguments)` that runs the command line in a process of its own: a `CompletedProcess[str]`."""
    return bench.gym
