"""The processes in which chat templates run, of all tokenizers of this one: as many as are asked at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from gym_data.chat.chat_rendering import ChatTemplateSpec, RenderRequest, RenderResult
from gym_data.chat.template_worker import Worker


class WorkerPool:
    """As many such processes as are asked at the same time; which of them answers makes no difference."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self.idle: list[Worker] = []
        self.busy: list[Worker] = []
        self._stopped = False

    def control(self, spec: ChatTemplateSpec) -> list[str]:
        """Return what `Worker.control` does."""
        with self._one() as worker:
            return worker.control(spec)

    def reads(self, spec: ChatTemplateSpec) -> list[str]:
        """Return what `Worker.reads` does."""
        with self._one() as worker:
            return worker.reads(spec)

    def chat(self, spec: ChatTemplateSpec, request: RenderRequest) -> RenderResult:
        """Return what `Worker.chat` does."""
        with self._one() as worker:
            return worker.chat(spec, request)

    def learnable(
        self, spec: ChatTemplateSpec, requests: Sequence[RenderRequest], to_first: bool = False
    ) -> list[RenderResult | ValueError]:
        """Return what `Worker.learnable` does."""
        with self._one() as worker:
            return worker.learnable(spec, requests, to_first)

    @contextmanager
    def at_work(self) -> Iterator[WorkerPool]:
        """Yield processes for one piece of work, of which one stays; where it is broken off, they end at once."""
        own = WorkerPool()
        with suppress(IndexError):
            own.idle.append(self.idle.pop())
        try:
            yield own
        except BaseException:
            own.stop()
            raise
        if not self.idle:  # nobody else left one meanwhile
            self.idle, own.idle = own.idle[:1], own.idle[1:]
        for worker in own.idle:
            worker.end()

    def stop(self) -> None:
        """End all processes for good, whatever they do."""
        self._stopped = True
        for worker in [*self.idle, *self.busy]:
            worker.stop()

    @contextmanager
    def _one(self) -> Iterator[Worker]:
        try:
            worker = self.idle.pop()  # the one that worked last, so that no more are started than are needed
        except IndexError:
            worker = Worker()
        self.busy.append(worker)
        if self._stopped:
            worker.stop()
        try:
            yield worker
        finally:
            self.busy.remove(worker)
            self.idle.append(worker)


WORKERS = WorkerPool()
