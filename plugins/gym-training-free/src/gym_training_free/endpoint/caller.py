"""Calls of a run: many at a time, sent again where that may help, each in the journal and in the ledger."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from threading import Event, Lock, Thread
from typing import TypeVar, cast

from gym_core.errors import GymError
from gym_training_free.endpoint.chat import ChatModel, ChatRequest
from gym_training_free.endpoint.journal import Journal, Key
from gym_training_free.endpoint.ledger import Charge, Ledger, Usage
from gym_training_free.endpoint.reply import ChatReply, Failed

_log = logging.getLogger(__name__)
LONGEST_WAIT = 120.0  #: seconds before an attempt, whatever a server asks for
T = TypeVar("T")
R = TypeVar("R")


class Caller:
    """Asks models on behalf of a run. A context: it ends its threads."""

    def __init__(self, journal: Journal, ledger: Ledger, concurrency: int, patience: float = inf) -> None:
        """Ask so many times at once where nobody says which model is asked.

        Where so many calls in a row (`patience`) fail as all would, the model is down, and GymError is raised.
        """
        self.journal, self.ledger, self.concurrency, self.patience = journal, ledger, concurrency, patience
        self._over = Event()  #: ends waits between attempts
        self._stop: BaseException | None = None
        self._turn = Lock()
        self.failures: Counter[str] = Counter()  #: calls without a reply, by reason
        self._mute: dict[Key, str] = {}  #: calls without a reply, until something follows from that
        self._heard = False  #: whether a call of this map was answered
        self._there: set[str] = set()  #: models that replied to a call of their last map, be it with a refusal
        self._away: Counter[str] = Counter()  #: by model, calls in a row that failed as all would
        self._silent: dict[str, str] = {}  #: by model, why a call of its last map brought nothing
        self.unpriced: set[str] = set()  #: models that were asked, and of which nobody knows what they cost

    def __enter__(self) -> Caller:
        """Begin."""
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        """Let no call wait any longer."""
        if kind is None:
            self._go_on()
        self._over.set()

    def map(
        self,
        work: Callable[[T], R],
        items: Iterable[T],
        model: ChatModel | None = None,
        answered: Callable[[R], bool] = lambda found: True,
    ) -> list[R]:
        """Return what `work`, which calls a model, returns for each item, in order; as many at once as the model takes.

        `answered` says whether what was found for an item is worth anything: where nothing is, a run ends, and asks again.
        Where one raises, nothing new begins, what is under way ends, and then its error is raised. Ctrl-C waits for nothing:
        what is under way stays in the ledger, and is asked again when the run goes on.
        """
        self._go_on()
        self._heard = False
        if model is not None:
            self._there.discard(_named(model))
            self._silent.pop(_named(model), None)
        todo, most = list(items), self.concurrency if model is None else model.concurrency
        waiting, found = iter(enumerate(todo)), dict[int, R]()

        def serve() -> None:
            while not self._over.is_set():
                with self._turn:
                    place, item = next(waiting, (-1, None))
                if place < 0:
                    return
                try:
                    found[place] = work(cast(T, item))
                except BaseException as error:
                    self._stop = self._stop or error
                    self._over.set()

        threads = [Thread(target=serve, daemon=True) for _ in range(min(most, len(todo)))]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            self._over.set()
            raise
        if self._stop is not None:
            raise self._stop
        if self._heard and any(map(answered, found.values())):
            # a run to which nobody answers ends here, and asks again when it goes on
            self._go_on()
        return [found[place] for place in range(len(todo))]

    def heard_nothing(self, model: ChatModel, calls: int) -> GymError | None:
        """Return why a model replied to none of so many calls, all that were made; None where it did, or may have been down for
        one alone.
        """
        if calls < 2 or self.failures.total() < calls:
            return None
        return _down(model, "a whole batch", self.failures.most_common(1)[0][0])

    def insist(self, model: ChatModel) -> None:
        """Raise GymError where a model replied to no call of the last `map`: it is down, and nothing is to follow from that."""
        why = self._silent.get(_named(model))
        if why and _named(model) not in self._there:
            raise _down(model, "a whole batch", why)

    def call(self, model: ChatModel, key: Key, request: ChatRequest) -> ChatReply | None:
        """Return the reply to a request: that of the journal, or a new one; None where none came, however often it was sent.

        Raises CapReached where it might cost more than is left, and GymError where no request will ever succeed, or none for now.
        """

        def ask(left_out: Collection[str]) -> ChatReply:
            return model.ask(request.without(left_out))

        return self._asked(model, key, request.digest(), model.most(request), ask)

    def embed(self, model: ChatModel, key: Key, texts: Sequence[str]) -> list[list[float]] | None:
        """Return a vector for each text; otherwise as `call`."""

        def ask(left_out: Collection[str]) -> ChatReply:
            vectors, usage = model.embed(texts)
            return ChatReply(json.dumps(vectors), usage=usage)

        said = json.dumps(list(texts)).encode()
        most = model.charge(Usage(len(said)))  # a token has at least a byte
        reply = self._asked(model, key, hashlib.sha256(said).hexdigest()[:16], most, ask)
        return None if reply is None else cast(list[list[float]], json.loads(reply.text))

    def _asked(
        self, model: ChatModel, key: Key, digest: str, most: Charge, ask: Callable[[Collection[str]], ChatReply]
    ) -> ChatReply | None:
        if not model.priced:
            self.unpriced.add(model.name)
        if found := self.journal.reply(key, digest):
            self._heard = True
            self._there.add(_named(model))
            return found
        if self.journal.without(key, digest):
            return None
        name, refused, attempt = _named(model), list[str](), 0
        while True:
            left_out = {*self.journal.left_out.get(name, ()), *refused}
            with self.ledger.reserve(most) as reservation:
                self.journal.sent(key, digest, most)
                try:
                    reply = ask(left_out)
                except Failed as failed:
                    error = failed
                    if not error.counted:
                        reservation.free()
                    self.journal.failed(key, str(error), most if error.counted else Charge())
                except GymError:  # the server refused it
                    reservation.free()
                    self.journal.failed(key, "refused for good", Charge())
                    raise
                else:
                    self._heard = True
                    self._there.add(name)
                    self._away[name] = 0
                    charge = most if reply.usage is None else model.charge(reply.usage)
                    self.journal.replied(key, digest, reply, charge, reply.usage is not None)
                    if reply.usage is not None:
                        reservation.settle(charge)
                    for one in self.journal.leave_out(name, refused):
                        _log.warning("%s refuses `%s`, which is left out from now on", name, one)
                    return reply
            if error.parameter and error.parameter not in left_out:
                refused.append(error.parameter)  # remembered once a request without it is answered
                continue
            if (
                not error.passing
                or attempt == model.retries
                or self._over.wait(self._pause(model, key, attempt, error))
            ):
                break
            attempt += 1
        with self._turn:
            self._away[name] = self._away[name] + 1 if error.away else 0
        if not error.away:
            self._there.add(name)
        if self._away[name] >= self.patience and not self._over.is_set():
            raise _down(model, f"{self._away[name]} calls in a row", str(error))
        if not self._over.is_set():
            self._mute[key], self._silent[name] = digest, str(error)
        self.failures[str(error)] += 1
        level = logging.WARNING if self.failures[str(error)] == 1 else logging.DEBUG  # one line for each reason
        _log.log(level, "%s gave no answer to %s: %s", model.where, key, error)
        return None

    def _go_on(self) -> None:
        """Note the calls that brought nothing: what follows is asked without, and it is to be the same after a crash."""
        with self._turn:
            mute, self._mute = self._mute, {}
        self.journal.unanswered(mute)

    def _pause(self, model: ChatModel, key: Key, attempt: int, error: Failed) -> float:
        """Return the seconds before the next attempt: those that the server asks for, or twice as many each time."""
        said = hashlib.sha256(repr((key, attempt)).encode()).digest()
        jitter = 0.5 + int.from_bytes(said[:4]) / 2**33  # from a half to one
        wait = error.wait if error.wait is not None else model.backoff * 2**attempt * jitter
        return float(min(wait, LONGEST_WAIT))


def _down(model: ChatModel, what: str, why: str) -> GymError:
    fix = "see that it runs, and what it logs; a run with an `output` goes on"
    return GymError(f"gave no answer to {what}: {why}", where=model.where, key="model", fix=fix)


def _named(model: ChatModel) -> str:
    """Return what a model is called among those of a run."""
    return f"{model.name} at {model.where}"
