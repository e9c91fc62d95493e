"""Functions of the user that are coroutines: what they keep from one call to the next, and how they end."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gym_rewards.coroutines import settled


async def loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def leave(how: Any) -> None:
    how()


def test_a_client_that_is_kept_finds_its_loop_again() -> None:
    """As a judge behind an endpoint, whose connections are made once."""
    with ThreadPoolExecutor(8) as pool:
        loops = list(pool.map(lambda _: settled(loop()), range(8)))
    assert set(map(id, loops)) == {id(settled(loop()))} and loops[0].is_running()


@pytest.mark.parametrize(("how", "raised"), [(lambda: 1 / 0, ZeroDivisionError), (lambda: sys.exit(3), SystemExit)])
def test_one_that_fails_leaves_the_others_their_loop(how: Any, raised: type[BaseException]) -> None:
    with pytest.raises(raised):
        settled(leave(how))
    assert settled(loop()).is_running() and settled("no coroutine") == "no coroutine"
