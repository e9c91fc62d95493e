"""The kind `servers`: what answers requests over trained models. No torch is imported here."""

from __future__ import annotations

from typing import ClassVar

from gym_core.component import Component


class Server(Component):
    """Answers requests. `build(artifacts=Sequence[ModelSource], limits=Limits)` returns a `gym_serve.contract.Engine`.

    It loads what it serves before it returns, and raises GymError where something of it cannot be served: a template that is
    not the one that trained the model, a base that is another, a file that it does not read.
    """

    kind: ClassVar[str] = "servers"
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Endings of files that it reads: what is one of them, or a folder with them and no other weights, is served by it."""
