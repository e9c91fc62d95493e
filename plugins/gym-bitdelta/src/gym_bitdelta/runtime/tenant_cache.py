"""Tenants in memory, in two tiers with a bound each: as they lie in a file, and laid out for products.

Whoever needs tenants asks for them by name and waits for those alone that are not there yet: reading and laying out happen in a
thread of its own. What is in use is never let go of; what is not leaves in the order of its last use.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from gym_bitdelta.delta.file import Delta
from gym_bitdelta.runtime.tenant import Tenant
from gym_core import GymError

T = TypeVar("T")

REST = 4  #: parts of the time that the thread leaves to others, for each part that it takes


class NoRoomError(GymError):
    """The tenants in use leave no memory for another one."""


class Tier(Generic[T]):
    """Values by name, bounded in bytes. Not safe by itself: `Tiers` holds a lock."""

    def __init__(self, limit: int, size: Callable[[T], int]) -> None:
        """Hold at most `limit` bytes; `size` says how many a value takes."""
        self.limit, self.bytes, self.peak = limit, 0, 0
        self._size = size
        self._held: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def get(self, name: str) -> T | None:
        """Return a value, and count that as its last use."""
        if name in self._held:
            self._held.move_to_end(name)
        return self._held.get(name)

    def peek(self, name: str) -> T | None:
        """Return a value, which is no use of it."""
        return self._held.get(name)

    def put(self, name: str, value: T, used: Callable[[str, T], bool]) -> bool:
        """Add a value, letting go of the least recent ones that are not in use; returns False where there is no room."""
        size = self._size(value)
        self.drop(name)
        free = {key: self._size(each) for key, each in self._held.items() if not used(key, each)}
        if self.bytes - sum(free.values()) + size > self.limit:
            return False
        for key in free:
            if self.bytes + size <= self.limit:
                break
            self.drop(key)
        self._held[name] = value
        self.count(size)
        return True

    def drop(self, name: str) -> T | None:
        """Let go of a value, if it is there, and return it."""
        value = self._held.pop(name, None)
        if value is not None:
            self.bytes -= self._size(value)
        return value

    def count(self, size: int) -> None:
        """Take bytes into account, or, below 0, out of it: also those of values that somebody has and that are not held here."""
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


@dataclass
class _Use:
    """A tenant that somebody uses."""

    tenant: Tenant
    users: int = 0
    apart: bool = False  #: whether the tier holds it no more; its bytes are counted until nobody uses it


class Tiers:
    """Both tiers, and the thread that fills them."""

    def __init__(
        self,
        read: Callable[[str], Delta],
        prepare: Callable[[Delta, Callable[[], None]], Tenant],
        packed_bytes: int,
        prepared_bytes: int,
    ) -> None:
        """Take what reads a delta by its tenant's name, and what lays it out and calls something again and again meanwhile."""
        self._read, self._prepare = read, prepare
        self.packed: Tier[Delta] = Tier(packed_bytes, packed_size)
        self.prepared: Tier[Tenant] = Tier(prepared_bytes, lambda tenant: tenant.bytes)
        self._coming: dict[str, tuple[object, Future[Tenant]]] = {}
        self._awaited: Counter[str] = Counter()
        self._uses: dict[int, _Use] = {}  #: by the id of the tenant
        self._served = 0  #: how often `pin` returned without `unpin` yet
        self._worked = 0.0  #: seconds of the processor that the thread had had when it last went to work
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "deltas")

    def pin(self, names: Iterable[str]) -> dict[str, Tenant]:
        """Return tenants, and keep them until `unpin`; waits for those that are not there yet.

        Raises what reading raises; NoRoomError where the tenants in use would take more than the bound, and GymError where one
        alone would. Then none is kept.
        """
        wanted = list(dict.fromkeys(names))
        with self._lock:
            self._awaited.update(wanted)
        try:
            coming = {name: self.fetch(name) for name in wanted}
            found = {name: future.result() for name, future in coming.items()}
            with self._lock:
                self._served += 1
                for name, tenant in found.items():
                    use = self._uses.setdefault(id(tenant), _Use(tenant))
                    use.users += 1
                    if self.prepared.peek(name) is not tenant:  # forgotten meanwhile
                        self._set_apart(tenant)
        finally:
            with self._lock:
                self._awaited.subtract(wanted)
                self._awaited += Counter()
        return found

    def unpin(self, tenants: Mapping[str, Tenant]) -> None:
        """Say that what `pin` returned is not in use any more."""
        with self._lock:
            self._served -= 1
            for tenant in tenants.values():
                use = self._uses[id(tenant)]
                use.users -= 1
                if not use.users:
                    del self._uses[id(tenant)]
                    self.prepared.count(-tenant.bytes if use.apart else 0)

    def fetch(self, name: str) -> Future[Tenant]:
        """Return a tenant that is there, or will be; nobody waits."""
        with self._lock:
            there = self.prepared.get(name)
            if there is not None:
                done: Future[Tenant] = Future()
                done.set_result(there)
                return done
            if name not in self._coming:
                ticket = object()
                self._coming[name] = ticket, self._thread.submit(self._make, name, ticket)
            return self._coming[name][1]

    def forget(self, name: str) -> None:
        """Let go of a tenant whose file changed or went. Who uses it goes on with what he has; the next one reads anew."""
        with self._lock:
            self.packed.drop(name)
            self._set_apart(self.prepared.drop(name))
            self._coming.pop(name, None)

    def close(self) -> None:
        """End the thread, when it has done what it is at."""
        self._thread.shutdown(cancel_futures=True)

    def _set_apart(self, tenant: Tenant | None) -> None:
        """Go on counting the bytes of a tenant that is forgotten, where somebody uses it."""
        use = self._uses.get(id(tenant))
        if use is not None and not use.apart:
            use.apart = True
            self.prepared.count(use.tenant.bytes)

    def _used(self, name: str, tenant: Tenant) -> bool:
        return bool(self._awaited[name]) or id(tenant) in self._uses

    def _pause(self) -> None:
        """Sleep for a multiple of the time worked while somebody is served: both need Python's one lock."""
        if self._served:
            time.sleep(REST * (time.thread_time() - self._worked))
        self._worked = time.thread_time()

    def _make(self, name: str, ticket: object) -> Tenant:
        try:
            self._worked = time.thread_time()
            with self._lock:
                delta = self.packed.get(name)
            if delta is None:
                delta = self._read(name)
            self._pause()
            tenant = self._prepare(delta, self._pause)
            with self._lock:
                if not self._current(name, ticket):  # forgotten meanwhile: whoever waits has it, nobody else
                    return tenant
                self.packed.put(name, delta, lambda *held: False)
                if not self.prepared.put(name, tenant, self._used):
                    never, most = tenant.bytes > self.prepared.limit, self.prepared.limit / 1e6
                    raise (GymError if never else NoRoomError)(
                        f"{'there is' if never else 'the tenants in use leave'} no room for `{name}`, which takes "
                        f"{tenant.bytes / 1e6:.1f} MB: prepared deltas may take {most:.1f} MB",
                        key="prepared_bytes",
                        fix="set it higher" if never else "serve fewer tenants at a time, or set it higher",
                    )
                return tenant
        finally:
            with self._lock:
                if self._current(name, ticket):
                    del self._coming[name]

    def _current(self, name: str, ticket: object) -> bool:
        """Whether a reading is still the one that the next to ask would wait for."""
        return name in self._coming and self._coming[name][0] is ticket


def packed_size(delta: Delta) -> int:
    """Return the bytes that a delta takes in memory."""
    return sum(part.nbytes for record in delta.records.values() for part in record.parts.values())
