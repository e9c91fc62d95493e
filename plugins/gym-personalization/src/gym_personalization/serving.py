"""Answers for many users over one base: requests of any users share batches, each row computed with its own user's variant.

engine = ServingEngine(VariantStore(Path("variants")))
engine.load("alice")                                  # ahead of the first request; nobody waits
answer = engine.submit("alice", "What do I like?")    # a Future of the text
engine.close()

A request is answered by the version that is the newest in the store when its batch begins, and goes on with it to its end,
whatever is stored or removed meanwhile. Nothing of it depends on who else is in the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from gym_bitdelta.runtime.tenant_model import PACKED, PREPARED, Lease
from gym_bitdelta.runtime.tiers import NoRoomError
from gym_bitdelta.store import VariantStore
from gym_core import GymError
from gym_personalization.opened_variants import OpenedVariants, Prompt, Ready, messages_of
from gym_torch.generation.generator import Generator

BATCH = 32  #: most rows in one forward pass


@dataclass(frozen=True)
class Request:
    """A prompt of a user."""

    user: str
    prompt: Prompt  #: a text, or the messages of a conversation
    max_new_tokens: int = 256
    temperature: float = 0.0  #: 0 is greedy
    seed: int = 0
    answer: Future[str] = field(default_factory=Future, compare=False)


class ServingEngine:
    """Answers requests of the users of a store, in a thread of its own. Any thread may call it."""

    def __init__(
        self,
        store: VariantStore,
        max_batch: int = BATCH,
        packed_bytes: int = PACKED,
        prepared_bytes: int = PREPARED,
        kernel: str | None = None,
        dtype: torch.dtype | str = torch.float32,
    ) -> None:
        """Take a store. The base is loaded for the first request; all variants are of the same one.

        Args:
            store: of the variants, which may change at any time.
            max_batch: most rows in one forward pass.
            packed_bytes: most memory for deltas as they lie in their files.
            prepared_bytes: most memory for deltas laid out for products, those in use included.
            kernel: see `gym_bitdelta.runtime.tenant_model.TenantModel`.
            dtype: number format of the base; `auto` is that of its files.

        """
        self._variants = OpenedVariants(store, dtype, packed_bytes, prepared_bytes, kernel)
        self._batch = max_batch
        self._waiting: list[Request] = []
        self._closed = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
        self._thread.start()

    def load(self, user: str) -> None:
        """Have a user's variant read in the background. Raises GymError where there is none; who asks is told of damage."""
        self._variants.warm(user)

    def submit(self, user: str, prompt: Prompt, **options: Any) -> Future[str]:
        """Return what will be the answer to a prompt; `options` are the others of `Request`.

        It raises GymError where the user has no variant, or its file is damaged; nobody else is disturbed by that.
        """
        return self.submit_all([Request(user, prompt, **options)])[0]

    def submit_all(self, requests: Sequence[Request]) -> list[Future[str]]:
        """Return what will be the answers; the requests share batches where these have room."""
        for request in requests:
            messages_of(request.prompt)  # what is no prompt is told to who asks, at once
        with self._wake:
            if self._closed:
                raise GymError("the engine is closed", where="ServingEngine", fix="make another one")
            self._waiting += requests
            self._wake.notify()
        return [request.answer for request in requests]

    def close(self) -> None:
        """Answer what was asked, then end the thread and let go of the models."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        self._variants.close()

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                taken, self._waiting = self._waiting[: self._batch], self._waiting[self._batch :]
            taken = [each for each in taken if not each.answer.cancelled()]
            try:
                later = self._answer(taken)
            except BaseException as error:
                _failed(taken, error)
            else:
                with self._wake:
                    self._waiting = later + self._waiting

    def _answer(self, requests: Sequence[Request]) -> list[Request]:
        """Answer requests in as few batches as their options allow; return those whose variants had no room beside the others."""
        later: list[Request] = []
        groups: dict[tuple[Any, ...], list[tuple[Request, Ready]]] = {}
        with ExitStack() as stack:
            for request in requests:
                try:
                    ready = self._variants.ready(request.user, request.prompt, stack)
                except NoRoomError as error:
                    if groups:
                        later.append(request)
                    else:
                        _failed([request], error)
                except GymError as error:
                    _failed([request], error)
                else:
                    way = (id(ready.model), request.temperature, request.seed, ready.stops)
                    groups.setdefault(way, []).append((request, ready))
            for group in groups.values():
                try:
                    self._generate(group)
                except GymError as error:
                    _failed([request for request, _ in group], error)
        return later

    def _generate(self, group: Sequence[tuple[Request, Ready]]) -> None:
        """Answer requests that share a model, sampling and stop tokens, each with the random numbers that it has alone."""
        group = [each for each in group if each[0].answer.set_running_or_notify_cancel()]
        if not group:
            return
        (first, ready), tenants = group[0], {each.tenant.name: each.tenant.held for _, each in group if each.tenant}
        around = Lease(self._variants.shared, tenants).serving if tenants else None
        found = Generator(ready.model, None, self._batch).generate(
            [each.tokens for _, each in group],
            [request.max_new_tokens for request, _ in group],
            temperature=first.temperature,
            seed=first.seed,
            stop_ids=ready.stops,
            streams=[0] * len(group),
            keys=[each.tenant.name if each.tenant else None for _, each in group],
            around=around,
        )
        for (request, each), made in zip(group, found, strict=True):
            request.answer.set_result(each.tokenizer.decode(made.tokens[:-1] if made.finished else made.tokens))


def _failed(requests: Sequence[Request], error: BaseException) -> None:
    for request in requests:
        with suppress(InvalidStateError):  # it was cancelled, or has its answer
            request.answer.set_exception(error)


@dataclass(frozen=True)
class Served:
    """A user whose prompts are answered."""

    engine: ServingEngine
    user: str

    def generate(self, prompt: Prompt, **options: Any) -> str:
        """Return the answer of the user's newest variant; `options` are those of `Request`. Raises what `submit` tells of."""
        return self.engine.submit(self.user, prompt, **options).result()
