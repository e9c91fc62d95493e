"""Answers for many users over one base: requests of any users share batches, each row computed with its own user's variant.

engine = ServingEngine(VariantStore(Path("variants")))
engine.load("alice")                                  # ahead of the first request; nobody waits
answer = engine.submit("alice", "What do I like?")    # a Future of the text
engine.close()

A request is answered by the version that is the newest in the store when it is begun, and goes on with it to its end,
whatever is stored or removed meanwhile. Nothing of it depends on who else is in the batch.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import torch

from gym_bitdelta.runtime.row_tenants import computing
from gym_bitdelta.runtime.tenant import Tenant
from gym_bitdelta.runtime.tenant_cache import NoRoomError
from gym_bitdelta.runtime.tenant_model import PACKED, PREPARED
from gym_bitdelta.store import VariantStore
from gym_core import GymError
from gym_personalization.lanes import Lanes
from gym_personalization.opened_variants import OpenedVariants, Prompt, Ready, messages_of
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import SamplingOptions
from gym_torch.generation.scheduler import Job, Scheduler
from gym_torch.model import positions

NO_END = 2**20  #: requests that may wait, and tokens of a model that names no limit
AGAIN = 0.01  #: seconds until a variant is tried again that had no room beside those in use
BATCH = 32  #: most rows in one forward pass
#: What the options of a request may be: kind, least, and what they have to be below.
OPTIONS: tuple[tuple[str, Any, float, float, str], ...] = (
    ("max_new_tokens", Integral, 1, math.inf, "a whole number from 1 up"),
    ("temperature", Real, 0, math.inf, "a number from 0 up; 0 is greedy"),
    ("seed", Integral, 0, 2**63, "a whole number from 0 up, below 2^63"),
)


@dataclass(frozen=True)
class Request:
    """A prompt of a user."""

    user: str
    prompt: Prompt  #: a text, or the messages of a conversation
    max_new_tokens: int = 256
    temperature: float = 0.0  #: 0 is greedy
    seed: int = 0
    answer: Future[str] = field(default_factory=Future, compare=False)

    def __post_init__(self) -> None:
        """Raise GymError for options that no answer can have."""
        for name, kind, least, most, wanted in OPTIONS:
            value = getattr(self, name)
            if not isinstance(value, kind) or not least <= value < most:
                raise GymError(f"{value!r:.40} is no {name}", key=name, fix=f"give {wanted}")


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
        self._held: dict[Hashable, Tenant] = {}
        self._uses: Counter[Hashable] = Counter()
        self._lanes = Lanes(self._around)
        self._turn = threading.Lock()
        self._closed = False
        self._scheduler = Scheduler(max_batch, NO_END)
        self._reader = ThreadPoolExecutor(1, "variants")

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
        with self._turn:
            if self._closed:
                raise GymError("the engine is closed", where="ServingEngine", fix="make another one")
            for request in requests:
                self._reader.submit(self._start, request)
        return [request.answer for request in requests]

    def answers(self, requests: Sequence[Request]) -> list[str | GymError]:
        """Return the answer to each request, or why there is none; they share batches where these have room."""
        futures: list[Future[str] | GymError] = []
        for request in requests:
            try:
                futures += self.submit_all([request])
            except GymError as error:
                futures.append(error)
        return [each if isinstance(each, GymError) else _answer(each) for each in futures]

    def close(self) -> None:
        """Answer what was asked, then end the threads and let go of the models."""
        with self._turn:
            self._closed = True
        self._reader.shutdown()
        self._scheduler.close()
        self._variants.close()

    def _start(self, request: Request) -> None:
        """Read the variant of a request, and have it decoded beside the others."""
        if not request.answer.set_running_or_notify_cancel():
            return
        with ExitStack() as stack:
            try:
                ready = self._ready(request, stack)
                prompt = tuple(ready.tokens(request.prompt))
                row = Row(
                    prompt,
                    min(request.max_new_tokens, _room(ready, len(prompt))),
                    ready.stops,
                    SamplingOptions(request.temperature, seed=request.seed),
                    key=ready.name,
                )
            except BaseException as error:
                request.answer.set_exception(error)
                return
            close = stack.pop_all().close

        def ended(error: BaseException | None) -> None:
            made = row.completion
            try:
                close()
                if error is not None:
                    raise error
                text = ready.tokenizer.decode(made.said)
            except BaseException as raised:
                request.answer.set_exception(raised)
            else:
                request.answer.set_result(text)

        try:
            lane = self._lanes.of(ready.home, ready.model, _longest(ready), ready.alone)
            self._scheduler.add(Job(lane, row, lambda row: True, ended))
        except BaseException as error:
            ended(error)

    def _ready(self, request: Request, stack: ExitStack) -> Ready:
        """Return what answers a request; where its variant has no room beside the others, it waits for them.

        Whether there are others is read before each try: one that ends during a try leaves room for the next.
        """
        while True:
            others = bool(self._uses)
            try:
                ready = self._variants.ready(request.user, stack)
                break
            except NoRoomError:
                if not others:
                    raise
                time.sleep(AGAIN)
        if ready.tenant is not None:
            with self._turn:
                self._held[ready.name] = ready.tenant
                self._uses[ready.name] += 1
            # the memory is given back before the use ends: `others` must not be missed in between
            leased = stack.pop_all()
            stack.callback(self._drop, ready.name)
            stack.push(leased)
        return ready

    def _drop(self, name: str) -> None:
        with self._turn:
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name], self._held[name]

    def _around(self, keys: list[Hashable]) -> AbstractContextManager[None]:
        """Return the context of a pass whose rows are of these versions."""
        held = [self._held.get(key) for key in keys]
        return computing(self._variants.shared.mixture(held) if any(each is not None for each in held) else None)


@dataclass(frozen=True)
class Served:
    """A user whose prompts are answered."""

    engine: ServingEngine
    user: str

    def generate(self, prompt: Prompt, **options: Any) -> str:
        """Return the answer of the user's newest variant; `options` are those of `Request`. Raises what `submit` tells of."""
        return self.engine.submit(self.user, prompt, **options).result()


def _longest(ready: Ready) -> int:
    """Return how many tokens prompt and answer may have."""
    return positions.stated(ready.model) or NO_END


def _room(ready: Ready, prompt: int) -> int:
    """Return how many tokens a prompt leaves for the answer. Raises GymError where that is none."""
    longest = _longest(ready)
    if prompt >= longest:
        why = f"the prompt has {prompt:,} tokens, and may have {longest - 1:,}"
        raise GymError(why, key="prompt", fix="ask a shorter one, or leave earlier messages out")
    return longest - prompt


def _answer(future: Future[str]) -> str | GymError:
    try:
        return future.result()
    except GymError as error:
        return error
