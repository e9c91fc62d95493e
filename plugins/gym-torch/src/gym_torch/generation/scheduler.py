"""Decodes jobs in a thread of its own as they arrive: when they enter a batch, what is reported, and what happens when one fails.

Jobs of one lane share batches; a lane is one model with the context of its passes, or another engine that decodes rows. An error
of a job is reported to that job alone, an error of a lane to all of its jobs.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedModel

from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.decoding import Decoding
from gym_torch.generation.padded_rows import Around
from gym_torch.generation.prefix_cache import PrefixCache
from gym_torch.generation.row import Row
from gym_torch.generation.row_decoder import PartialPrefill, RowDecoder
from gym_torch.generation.separate_rows import SeparateRows
from gym_torch.generation.turns import Turns, has_room
from gym_torch.kernels.fused_modules import fuse

PATIENCE = 8  #: steps after which a job enters, also where fewer than a quarter of the rows are free
PROMPT_TOKENS = 8192  #: of the prompts that enter together where nothing is decoded meanwhile
CHUNK = 1024  #: of them while others are decoded; of a longer prompt so many at a time, so that no reply stands still
_log = logging.getLogger(__name__)


class QueueFullError(Exception):
    """The queue is full."""


class ClosedError(Exception):
    """The scheduler takes no more jobs, or ended before a job was done."""


@dataclass(eq=False)
class Lane:
    """A decoder and the jobs that share its batches."""

    opens: Callable[[], RowDecoder]  #: returns what decodes, without rows; called again where it failed
    in_parts: bool = True  #: whether a long prompt is computed a part at a time
    one_by_one: bool = False  #: whether one row enters at a time, so that none waits for, or fails with, another
    decoding: RowDecoder | None = None
    jobs: dict[Row, Job] = field(default_factory=dict)
    begun: PartialPrefill | None = None  #: a long prompt that is computed a part at a time; its jobs are among `jobs`
    turns: Turns = field(default_factory=Turns)

    def is_long(self, row: Row) -> bool:
        """Whether the prompt of a row is computed a part at a time."""
        return self.in_parts and len(row.prompt) > CHUNK

    def session(self) -> RowDecoder:
        """Return the decoder, opened where it is not."""
        self.decoding = self.decoding or self.opens()
        return self.decoding


def model_lane(
    model: PreTrainedModel,
    support: CacheSupport,
    longest: int,
    around: Around | None = None,
    prefixes: PrefixCache | None = None,
) -> Lane:
    """Return the lane of a model; see `Decoding` for the arguments."""
    fuse(model)  # as the generator does

    def opens() -> RowDecoder:
        model.eval()
        return Decoding(model, support, longest, around=around, prefixes=prefixes)

    return Lane(opens, support.cached)


def separate_lane(model: PreTrainedModel) -> Lane:
    """Return the lane of rows of a model whose prompts have more than tokens."""
    return Lane(lambda: SeparateRows(model), in_parts=False, one_by_one=True)


@dataclass(eq=False)
class Job:
    """A row to decode, with callbacks that are called in the thread of the scheduler."""

    lane: Lane
    row: Row
    told: Callable[[Row], bool]  #: called for each token; returns whether the row goes on
    ended: Callable[[BaseException | None], None]  #: called once, with the error where there was one
    user: Hashable = None  #: whose it is: users enter in turns
    cancelled: bool = False
    waited: int = 0  #: steps


class Scheduler:
    """The decoding thread and its queue. Its methods may be called from any thread."""

    def __init__(self, max_batch: int, queue: int, flush: Callable[[], None] = lambda: None) -> None:
        """Start. `max_batch` rows of a lane are decoded together, `queue` jobs may wait; `flush` is called after each turn."""
        self.max_batch, self.queue, self._flush = max_batch, queue, flush
        self._waiting: list[Job] = []  # as they came
        self._lanes: dict[Lane, None] = {}  # those that have jobs
        self._wake = threading.Condition()
        self._closed = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="decoding", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that are not decoded yet."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs that are decoded."""
        return sum(len(lane.jobs) for lane in list(self._lanes))

    def add(self, *jobs: Job) -> None:
        """Have jobs decoded. Raises QueueFullError, and ClosedError after `close`."""
        with self._wake:
            if self._closed:
                raise ClosedError
            free = sum(self.max_batch - len(lane.jobs) for lane in {job.lane for job in jobs})
            held = Counter(job.user for job in self._waiting)
            if not has_room(held, Counter(job.user for job in jobs), self.queue + max(free, 0)):
                raise QueueFullError
            self._waiting += jobs
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """End a job at the next step; its `ended` is called."""
        with self._wake:
            job.cancelled = True
            self._wake.notify()

    def close(self, timeout: float | None = None) -> None:
        """Take no more jobs, and wait until all have ended; those left after `timeout` seconds fail."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join(timeout)
        self._abandoned = True
        self._thread.join()

    def _work(self) -> None:
        try:
            while self._round():
                self._flush()
        except BaseException as error:  # of nobody's job: whoever waits is told before the thread ends
            with self._wake:
                self._closed = True
                self._abandon(error)
            raise
        finally:
            self._flush()

    def _round(self) -> bool:
        """Run one step of each lane that has jobs; return False when there are none and the scheduler is closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self.running or self._closed)
            if self._abandoned:
                self._abandon(ClosedError())
            if not self._waiting and not self.running:
                return False
            entering = self._entering()
        for lane in list(self._lanes):
            try:
                self._turn(lane, entering.get(lane, []))
            except Exception as error:  # what is in flight there may be anything now
                self._fail(lane, error)
            if not lane.jobs:
                del self._lanes[lane]
        return True

    def _entering(self) -> dict[Lane, list[Job]]:
        """Move waiting jobs that may enter now to their lanes, users in turns; return them by lane."""
        waiting: dict[Lane, list[Job]] = {}
        for job in self._waiting:
            self._lanes.setdefault(job.lane)
            if job.cancelled:
                _end(job, None)
            else:
                waiting.setdefault(job.lane, []).append(job)
        found = {lane: self._chosen(lane, jobs) for lane, jobs in waiting.items()}
        entered = {job for own in found.values() for job in own}
        self._waiting = [job for job in self._waiting if not job.cancelled and job not in entered]
        for job in self._waiting:
            job.waited += 1
        for lane, own in found.items():
            lane.jobs |= {job.row: job for job in own}
        return found

    def _chosen(self, lane: Lane, waiting: Sequence[Job]) -> list[Job]:
        """Return the jobs that enter a lane now."""
        free, tokens, own = self.max_batch - len(lane.jobs), 0, list[Job]()
        if free <= 0:
            return own
        grows = lane.begun or (lane.decoding and lane.decoding.rows)
        # a pass for one new row costs about as much as for many: wait a little for a quarter of the rows
        due = free * 4 >= self.max_batch or any(job.waited >= PATIENCE and not lane.is_long(job.row) for job in waiting)
        for at in lane.turns.order([job.user for job in waiting]):
            job, size = waiting[at], tokens + len(waiting[at].row.prompt)
            if lane.is_long(job.row):  # one at a time; replies to the same prompt enter with it
                enters, size = not lane.begun and (not own or own[0].row.text == job.row.text), PROMPT_TOKENS
            else:
                enters = size <= (CHUNK if grows else PROMPT_TOKENS) if own else due
            if enters and len(own) < (1 if lane.one_by_one else free):
                own.append(job)
                tokens = size
                lane.turns.took(job.user)
        return own

    def _turn(self, lane: Lane, entering: list[Job]) -> None:
        """Remove cancelled jobs, admit new ones, and run a step of a lane. Raises errors that concern all of its jobs."""
        decoding = lane.session()
        self._leave(lane, {job: None for job in lane.jobs.values() if job.cancelled})
        new = [job.row for job in entering if job.row in lane.jobs]
        if new and lane.in_parts and len(new[0].prompt) > CHUNK:
            self._admit(lane, new, lambda: self._begin(lane, new))
        elif new:
            self._admit(lane, new, lambda: decoding.admit(new))
        if lane.begun:
            lane.begun.rows = [row for row in lane.begun.rows if row in lane.jobs]
            self._admit(lane, lane.begun.rows, lambda: self._go_on(lane))
        if decoding.rows:
            self._deliver(lane, decoding.step())

    def _admit(self, lane: Lane, new: Sequence[Row], work: Callable[[], Sequence[Row]]) -> None:
        """Run the prefill of rows that enter, and report their tokens; an error ends their jobs alone."""
        try:
            rows = work()
        except Exception as error:  # of the model, or of its memory
            lane.begun = None if lane.begun and lane.begun.rows[0] in new else lane.begun
            self._leave(lane, {lane.jobs[row]: error for row in new})
        else:
            self._deliver(lane, rows)

    def _begin(self, lane: Lane, rows: Sequence[Row]) -> Sequence[Row]:
        lane.begun = lane.session().begin(rows)
        return ()

    def _go_on(self, lane: Lane) -> Sequence[Row]:
        """Compute the next chunk of the long prompt; return its rows after the last one."""
        begun = lane.begun
        if begun is None or not begun.rows:
            lane.begun = None
        elif begun.left > CHUNK:
            lane.session().advance(begun, CHUNK)
        else:
            lane.begun = None
            return lane.session().finish(begun)
        return ()

    def _deliver(self, lane: Lane, rows: Sequence[Row]) -> None:
        """Report new tokens to jobs, and end those that are over."""
        over: dict[Job, BaseException | None] = {}
        for row in rows:
            job = lane.jobs[row]
            try:
                if not job.told(row) or row.completion.finished or len(row.completion.tokens) >= row.limit:
                    over[job] = None
            except Exception as error:
                over[job] = error
        self._leave(lane, over)

    def _leave(self, lane: Lane, over: Mapping[Job, BaseException | None]) -> None:
        """Remove jobs and call their `ended`, with an error where there was one. Raises an error of dropping their rows."""
        for job in over:
            del lane.jobs[job.row]
        try:
            if over and lane.decoding is not None:
                lane.decoding.drop([job.row for job in over])
        finally:
            for job, error in over.items():
                _end(job, error)

    def _fail(self, lane: Lane, error: BaseException) -> None:
        """End all jobs of a lane with an error, and close its decoder."""
        lane.decoding = lane.begun = None
        self._leave(lane, dict.fromkeys(lane.jobs.values(), error))

    def _abandon(self, error: BaseException) -> None:
        """End all jobs with an error."""
        for job in self._waiting:
            _end(job, error)
        self._waiting.clear()
        for lane in self._lanes:
            self._fail(lane, error)


def _end(job: Job, error: BaseException | None) -> None:
    try:
        job.ended(error)
    except Exception:
        _log.exception("a job could not be told that it ended")
