"""Chooses a kernel or torch for each operation by a trial of speed and error; a run keeps its choices."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gym_core import Run
from gym_torch.console import warn
from gym_torch.kernels.kernel_functions import KernelFunctions
from gym_torch.kernels.precision_probe import milliseconds, remembered

WORTH = 1.1  #: a kernel must be so many times as fast as torch
CLOSE = 1.25  #: and its error at most so many times that of torch
ROUNDING = torch.finfo(torch.float32).eps  #: errors of this size are as good as none
TRIALS = "kernel_trials"  #: in run.json: by piece of work, what each kernel was found to be

T = TypeVar("T")
F = TypeVar("F")
Results = Callable[[], Sequence[Tensor]]
Work = tuple[Results, Results, Results]
"""What a trial compares, each a function that returns values and gradients: by the kernel, by torch, and in float64."""


@dataclass(frozen=True)
class Trial:
    """Result of the trial of one operation: milliseconds forward and backward, and errors relative to float64."""

    kernel: str
    kernel_ms: float
    torch_ms: float
    kernel_error: float
    torch_error: float

    @property
    def exact(self) -> bool:
        """Return whether the kernel is as exact as torch, compared with float64; NaN is not exact."""
        return self.kernel_error < CLOSE * self.torch_error + ROUNDING

    @property
    def pays(self) -> bool:
        """Return whether to use the kernel."""
        return self.torch_ms > WORTH * self.kernel_ms and self.exact

    def __str__(self) -> str:
        """Return the result in one line."""
        if not self.exact:
            return f"{self.kernel}: refused, its error is {self.kernel_error:.2g}, that of torch {self.torch_error:.2g}"
        times = f"{self.kernel_ms:.3g} ms against {self.torch_ms:.3g} ms of torch"
        return f"{self.kernel}: {'' if self.pays else 'refused, '}{times}"


def trial(kernel: KernelFunctions, name: str, work: Callable[[], Work]) -> Trial:
    """Return the trial of a kernel at an operation; cached by the name of the operation and the version of the kernel."""

    def measure() -> dict[str, object]:
        mine, theirs, exact = work()
        wanted = [part.double() for part in exact()]
        kinds = [part.dtype for part in theirs()]

        def error(found: Sequence[Tensor]) -> float:
            shapes = [(part.shape, kind) for part, kind in zip(wanted, kinds, strict=True)]
            if [(part.shape, part.dtype) for part in found] != shapes:
                return float("inf")
            off = [(one.double() - true).norm() / true.norm() for one, true in zip(found, wanted, strict=True)]
            return float(torch.stack(off).max())  # which is not a number where one of them is not

        times = milliseconds(lambda: mine()[0], lambda: theirs()[0])
        return asdict(Trial(kernel.name, times[0], times[1], error(mine()), error(theirs())))

    return Trial(**remembered("kernels", json.dumps([kernel.name, kernel.version, name]), measure))


def with_gradients(how: Callable[..., Tensor], given: Sequence[Tensor], by_out: Tensor) -> list[Tensor]:
    """Return the output and the gradients of the inputs, from the gradient `by_out` of the output."""
    leaves = [part.detach().requires_grad_() for part in given]
    out = how(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, by_out.to(out.dtype))]


def apart(work: Callable[[], T]) -> T:
    """Run `work` in a new thread, where no mode, hook, autocast or graph of the caller is active."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def watched() -> bool:
    """Whether a compiler, tracer or transform is active, which would not see what a kernel does."""
    proxy = torch._C._TorchDispatchModeKey.PROXY
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_dispatch_mode(proxy) is not None
        or torch._ops._get_dispatch_mode_pre_dispatch(proxy) is not None
        or forward_ad._current_level >= 0
    )


class Choices:
    """The chosen kernel by name of operation, or "" for torch."""

    def __init__(self, record: str, own: Callable[[], Sequence[KernelFunctions]]) -> None:
        """Begin without choices; `record` is their key in run.json, `own` returns the kernels of the engine."""
        self.always: bool | None = None  #: set to true or false, no trial is asked: the first kernel works, or torch
        self._record = record
        self._own = own
        self._libraries: tuple[KernelFunctions, ...] = ()
        self._known: dict[str, str] = {}
        self._tried: dict[str, list[str]] = {}
        self._run: Run | None = None
        self._untried = ContextVar(f"{record}: untried", default=False)

    @contextmanager
    def kept(self, run: Run, libraries: Sequence[KernelFunctions] = ()) -> Iterator[None]:
        """Record the choices of a run that are made in the block in run.json; a resumed run uses those of its record.

        In the block `libraries` are tried as well.
        """
        before = self._run, self._libraries, self._known, self._tried
        self._run, self._libraries = run, tuple(libraries)
        self._known = dict(run.record.read().get(self._record, {})) if run.resuming else {}
        self._tried = {}
        for gone in sorted({*self._known.values()} - {"", *(each.name for each in self.kernels())}):
            warn(
                f"this run began with the kernel {gone}, which is not here: torch computes what it did, with other last digits"
            )
        try:
            yield
        finally:
            self._run, self._libraries, self._known, self._tried = before

    @contextmanager
    def untried(self) -> Iterator[None]:
        """Use the first kernel in the block without a trial, if there is one; in this thread only."""
        before = self._untried.set(True)
        try:
            yield
        finally:
            self._untried.reset(before)

    def any(self) -> bool:
        """Return whether there is a kernel, and no compiler, tracer or transform is active."""
        return self._asked() is not False and not watched() and bool(self.kernels())

    def _asked(self) -> bool | None:
        return True if self._untried.get() else self.always

    def kernels(self) -> Sequence[KernelFunctions]:
        """Return the available kernels, those of libraries first."""
        return (*self._libraries, *self._own())

    def choose(
        self,
        function: Callable[[KernelFunctions], F | None],
        name: str,
        given: Sequence[Tensor],
        work: Callable[[F], Work],
    ) -> F | None:
        """Return the kernel function for an operation on these tensors, or None for torch; see `any`.

        Args:
            function: returns the function of a library of kernels, None where it has none.
            name: of the operation, with everything that its time depends on but its rows and its device.
            given: the tensors.
            work: makes what a trial of a function compares; called at the first use of a name.

        """
        device = given[0].device.type
        name = name if device == "cpu" else f"{name} on {device}"
        asked = self._asked()
        known = None if asked else self._known.get(name)
        able = {
            each: found
            for each in (() if known == "" else self.kernels())
            if known in (None, each.name) and (found := function(each)) is not None and each.takes(given)
        }
        if able and known is None and not asked:
            with torch.random.fork_rng():
                self._decide(name, {each: partial(work, found) for each, found in able.items()})
            known = self._known[name]
        return next((found for each, found in able.items() if known in (None, each.name)), None)

    def _decide(self, name: str, able: dict[KernelFunctions, Callable[[], Work]]) -> None:
        """Try kernels at an operation, and record the fastest that is exact and fast enough, with the results of all trials."""
        found: list[Trial] = []
        said = self._tried[name] = []
        for kernel, work in able.items():
            try:
                each = apart(partial(trial, kernel, name, work))
            except Exception as error:  # the code of libraries, on shapes that they may not know
                said.append(f"{kernel.name}: refused, {type(error).__name__}: {str(error).strip()[:120]}")
                continue
            found.append(each)
            said.append(str(each))
        paying = [each for each in found if each.pays]
        self._known[name] = min(paying, key=lambda each: each.kernel_ms).kernel if paying else ""
        if self._run:
            trials = self._run.record.read().get(TRIALS, {}) | self._tried
            self._run.record.update(**{self._record: self._known, TRIALS: trials})
