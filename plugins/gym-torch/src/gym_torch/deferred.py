"""Libraries that transformers and peft import wherever they are installed, and that few runs use: imported at their first use.

While one of the modules in `IMPORTERS` is imported, a stand-in is imported in place of its library: whatever is taken from it
is looked up in the library itself when it is called, subclassed, asked for an attribute or what is an instance of it. So a
program that uses the library finds it, and one that does not waits for nothing. Every other module imports the library at once.

The cyclic garbage collector rests while these modules and those in `LARGE` are imported: what they make stays, and looking
through it again and again takes a fifth of the time.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

#: By module, the library that it imports and seldom needs. hqq brings torch's compiler, which takes longer than torch.
IMPORTERS = {
    "transformers.cache_utils": "hqq",
    "transformers.loss.loss_utils": "scipy",
    "transformers.quantizers.quantizer_torchao": "torchao",
    "peft.tuners.lora.hqq": "hqq",
}
#: Modules that bring thousands of others.
LARGE = frozenset(
    {"torch", "torch._dynamo", "transformers", "transformers.modeling_utils", "accelerate", "bitsandbytes"}
)


def defer() -> None:
    """Have these libraries imported at their first use, from now on; once is enough."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(IMPORTERS))


class _Finder(MetaPathFinder):
    """Finds the importers, and stand-ins for what they import meanwhile."""

    def __init__(self, importers: dict[str, str]) -> None:
        self.importers = importers
        self.standing_in: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in self.standing_in:
            return ModuleSpec(name, _StandInLoader(self), is_package=True)
        library = self.importers.get(name, "")
        if not library and name not in LARGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _ImporterLoader(name, spec.loader.path, self, library)
        return spec

    @contextmanager
    def deferring(self, library: str) -> Iterator[None]:
        """Import stand-ins in place of an installed library."""
        if library and library not in sys.modules and PathFinder.find_spec(library) is not None:
            self.standing_in.append(library)
        try:
            yield
        finally:
            self.end(library)

    def end(self, library: str) -> None:
        """Import the library itself from now on."""
        if library in self.standing_in:
            self.standing_in.remove(library)
            for name in [name for name in sys.modules if name.partition(".")[0] == library]:
                del sys.modules[name]

    def found(self, module: str, name: str) -> Any:
        """Return what a module has under a name, from the library itself."""
        self.end(module.partition(".")[0])
        there = importlib.import_module(module)
        return getattr(there, name) if hasattr(there, name) else importlib.import_module(f"{module}.{name}")


class _ImporterLoader(SourceFileLoader):
    """Executes a module while its library is deferred, and the garbage collector rests."""

    def __init__(self, name: str, path: str, finder: _Finder, library: str) -> None:
        super().__init__(name, path)
        self._finder, self._library = finder, library

    def exec_module(self, module: ModuleType) -> None:
        collects = gc.isenabled()
        gc.disable()
        try:
            with self._finder.deferring(self._library):
                super().exec_module(module)
        finally:
            if collects:
                gc.enable()


class _StandInLoader(Loader):
    def __init__(self, finder: _Finder) -> None:
        self._finder = finder

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name, self._finder)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: what it has is looked up when it is used."""


class _StandIn(ModuleType):
    """A module of a library that is not imported yet."""

    def __init__(self, name: str, finder: _Finder) -> None:
        super().__init__(name)
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Deferred(self.__name__, name, self._finder)


class _Deferred:
    """Something of a library, under the name that it has there."""

    def __init__(self, module: str, name: str, finder: _Finder) -> None:
        self._module, self._name, self._finder = module, name, finder

    def _itself(self) -> Any:
        return self._finder.found(self._module, self._name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._itself()(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._itself(), name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._itself())

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self._itself())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._itself(),)
