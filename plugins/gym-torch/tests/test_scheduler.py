"""The thread that decodes: what goes wrong is told to those it concerns, the others go on, and nobody waits for ever."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

from gym_testkit.architectures import ready
from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.row import Row
from gym_torch.generation.scheduler import ClosedError, Job, Lane, QueueFullError, Scheduler, model_lane
from gym_torch.generation.turns import REMEMBERED, Turns

PROMPT, PATIENCE = (3, 4, 5), 20  #: seconds


def lane_of(prefixes: PrefixCache | None = None) -> Lane:
    return model_lane(ready("qwen3"), CacheSupport(True, ragged=True), 128, prefixes=prefixes)


def job(lane: Lane, count: int = 4, limit: int = 64, scope: str | None = None) -> tuple[Job, Future[Any]]:
    """Return a job that is over after so many tokens, and what it will be told."""
    end: Future[Any] = Future()
    row = Row(PROMPT, limit, scope=scope)
    return Job(lane, row, lambda row: len(row.completion.tokens) < count, end.set_result), end


def made(scheduler: Scheduler, lane: Lane, count: int = 4) -> int:
    """Return how many tokens a job got."""
    asked, end = job(lane, count)
    scheduler.add(asked)
    assert end.result(PATIENCE) is None
    return len(asked.row.completion.tokens)


def test_a_lane_that_cannot_be_opened_fails_its_jobs_and_is_tried_again_for_the_next() -> None:
    scheduler, lane, error = Scheduler(4, 8), lane_of(), MemoryError()
    opens, tries = lane.opens, iter([error])

    def failing() -> Any:
        for each in tries:
            raise each
        return opens()

    lane.opens = failing
    first, end = job(lane)
    scheduler.add(first)
    assert end.result(PATIENCE) is error
    assert made(scheduler, lane) == 4
    scheduler.close(0)


def test_rows_that_cannot_be_dropped_fail_their_lane_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = PrefixCache(2**24)
    lane, other, error = lane_of(kept), lane_of(), MemoryError()
    put, calls = kept.put, []

    def failing(*given: Any) -> None:
        calls.append(given)
        if len(calls) == 2:  # the first is that of the prompt, this one of the reply that is over
            raise error
        put(*given)

    monkeypatch.setattr(kept, "put", failing)
    scheduler = Scheduler(4, 8)
    jobs = [job(lane, 3, scope="ann"), job(lane, 60), job(other, 60)]
    scheduler.add(*(each for each, _ in jobs))
    assert [end.result(PATIENCE) for _, end in jobs] == [None, error, None]
    assert [len(each.row.completion.tokens) for each, _ in jobs] == [3, 3, 60]
    assert made(scheduler, lane) == 4
    scheduler.close(0)


def test_what_a_job_raises_is_its_own_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, lane = Scheduler(4, 8), lane_of()
    (telling, told), (ending, _), (beside, end) = job(lane), job(lane), job(lane, 60)

    def failing(*given: Any) -> Any:
        raise ValueError("who reads went wrong")

    telling.told = ending.ended = failing
    scheduler.add(telling, ending, beside)
    assert isinstance(told.result(PATIENCE), ValueError) and end.result(PATIENCE) is None
    assert made(scheduler, lane) == 4 and "who reads went wrong" in caplog.text
    scheduler.close(0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whoever_waits_is_told_where_the_thread_itself_ends() -> None:
    error = RuntimeError()

    def failing() -> None:
        raise error

    scheduler, lane = Scheduler(1, 8, failing), lane_of()
    jobs = [job(lane) for _ in range(3)]
    scheduler.add(*(each for each, _ in jobs))
    assert [end.result(PATIENCE) for _, end in jobs] == [error] * 3
    with pytest.raises(ClosedError):
        scheduler.add(job(lane)[0])
    scheduler.close(0)


def test_jobs_that_are_cancelled_before_they_enter_are_told() -> None:
    scheduler, lane = Scheduler(4, 8), lane_of()
    asked, end = job(lane)
    asked.cancelled = True
    scheduler.add(asked)
    assert end.result(PATIENCE) is None and not asked.row.completion.tokens and made(scheduler, lane) == 4
    scheduler.close(0)


def test_a_lane_without_jobs_is_let_go_of() -> None:
    scheduler, lane = Scheduler(4, 8), lane_of()
    gone = weakref.ref(lane)
    made(scheduler, lane)
    del lane
    for _ in range(PATIENCE * 10):
        gc.collect()
        if gone() is None:
            break
        time.sleep(0.1)
    assert gone() is None and not scheduler.running
    scheduler.close(0)


def test_users_take_turns_and_what_one_asked_enters_in_its_order() -> None:
    scheduler, lane, over = Scheduler(2, 200), lane_of(), []

    def asked(name: str, prompt: tuple[int, ...] = PROMPT) -> Job:
        row = Row(prompt, 64)
        return Job(lane, row, lambda row: len(row.completion.tokens) < 2, lambda error: over.append(name), name[:3])

    running, ends = zip(*(job(lane, 60) for _ in range(2)), strict=True)
    for each in running:
        each.user = "ann"
    scheduler.add(*running)
    many = [asked(f"ann {number}") for number in range(98)]
    scheduler.add(*many)
    scheduler.add(asked("ben 0"), asked("ben 1"), asked("cid 0", (3, 4, 5) * 20))
    scheduler.close()
    assert [end.result(0) for end in ends] == [None, None]
    assert {*over[:4]} == {"ben 0", "cid 0", "ann 0", "ben 1"} and {*over[:2]} == {"ben 0", "cid 0"}
    assert over[4:] == [f"ann {number}" for number in range(1, 98)]
    assert len({tuple(each.row.completion.tokens) for each in many}) == 1


def test_a_user_who_waits_for_nothing_is_taken_where_another_has_filled_the_queue() -> None:
    scheduler, lane = Scheduler(1, 4), lane_of()
    jobs = [job(lane, 20)[0] for _ in range(12)]
    for each, user in zip(jobs, ["ann"] * 7 + ["ben"] * 4 + ["cid"], strict=True):
        each.user = user
    taken = []
    for each in jobs:
        try:
            scheduler.add(each)
            taken.append(each.user)
        except QueueFullError:
            pass
    scheduler.close()
    assert "cid" in taken and taken.count("ben") in (2, 3) and taken.count("ann") in (5, 6)


def test_only_so_many_users_are_remembered() -> None:
    turns = Turns()
    for user in range(2 * REMEMBERED):
        turns.took(user)
    assert turns.order([0, 2 * REMEMBERED - 1, REMEMBERED, 0]) == [0, 2, 1, 3]
