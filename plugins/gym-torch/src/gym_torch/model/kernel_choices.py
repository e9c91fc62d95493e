"""Which kernel of our own does a piece of work, and where torch does: found by a trial, and kept by a run to its end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from gym_core import Run
from gym_torch.model.precision_probe import milliseconds, remembered

WORTH = 1.1  #: a kernel must be so many times as fast as torch
CLOSE = 1.25  #: and its error at most so many times that of torch
ROUNDING = torch.finfo(torch.float32).eps  #: errors of this size are as good as none

T = TypeVar("T")
Results = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Trial:
    """What the trial of one piece of work found: milliseconds forward and backward, and errors relative to float64."""

    kernel: str
    kernel_ms: float
    torch_ms: float
    kernel_error: float
    torch_error: float

    @property
    def pays(self) -> bool:
        """Return whether to take the kernel."""
        return self.torch_ms > WORTH * self.kernel_ms and self.kernel_error < CLOSE * self.torch_error + ROUNDING


def trial(kernel: str, source: Path, name: str, work: Callable[[], tuple[Results, Results, Results]]) -> Trial:
    """Return the trial of what a kernel from a file computes, remembered by `name`.

    `work` makes three functions that return values and gradients: by the kernel, by torch, and in float64.
    """

    def measure() -> dict[str, object]:
        mine, theirs, exact = work()
        wanted = [part.double() for part in exact()]

        def error(found: Sequence[Tensor]) -> float:
            pairs = zip(found, wanted, strict=True)
            return max(float((one.double() - true).norm() / true.norm()) for one, true in pairs)

        times = [milliseconds(lambda how=how: how()[0]) for how in (mine, theirs)]  # type: ignore[misc]
        return asdict(Trial(kernel, times[0], times[1], error(mine()), error(theirs())))

    what = json.dumps([kernel, name, source.read_text(encoding="utf-8")])
    return Trial(**remembered(source.stem, what, measure))


def with_gradients(how: Callable[..., Tensor], given: Sequence[Tensor], by_out: Tensor) -> list[Tensor]:
    """Return what comes out, and the gradients of what is given, where `by_out` is that of what comes out."""
    leaves = [part.detach().requires_grad_() for part in given]
    out = how(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, by_out.to(out.dtype))]


def apart(work: Callable[[], T]) -> T:
    """Do a piece of work in a thread of its own, where no mode, hook, precision or graph of the caller looks on."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def watched() -> bool:
    """Whether someone compiles, traces or transforms what is computed: what C code does would escape them."""
    proxy = torch._C._TorchDispatchModeKey.PROXY
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_dispatch_mode(proxy) is not None
        or torch._ops._get_dispatch_mode_pre_dispatch(proxy) is not None
    )


class Choices:
    """By name of a piece of work, the instructions of the kernel that does it, or "" where torch does."""

    def __init__(self, record: str) -> None:
        """Begin without any; `record` is their name in run.json."""
        self.always: bool | None = None  #: set to true or false, no trial is asked
        self._record = record
        self._known: dict[str, str] = {}
        self._run: Run | None = None

    @contextmanager
    def kept(self, run: Run) -> Iterator[None]:
        """Write down for a run what is chosen in the block, and have one that is resumed go on as it began."""
        before = self._run, self._known
        self._run = run
        self._known = dict(run.record.read().get(self._record, {})) if run.resuming else {}
        try:
            yield
        finally:
            self._run, self._known = before

    def takes(self, own: str, name: str, pays: Callable[[], bool]) -> bool:
        """Return whether the kernel of the instructions `own` does the work of this name; `pays` is asked the first time."""
        if self.always is not None:
            return self.always
        if name not in self._known:
            with torch.random.fork_rng():
                self._known[name] = own if apart(pays) else ""
            if self._run:
                self._run.record.update(**{self._record: self._known})
        return self._known[name] == own
