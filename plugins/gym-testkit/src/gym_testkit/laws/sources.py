"""Laws of sources. What they read lies elsewhere, so it is not asked for."""

from __future__ import annotations

from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_testkit.named import names_its_maker

laws = laws_of("sources", "source")


@laws("tokens of its rows name it: package, version, code and every option")
def named(brought: Brought, bench: Bench) -> None:
    """So they are made again when any of that changes, and never taken for another source's."""
    names_its_maker(brought)
