"""Opens the libraries of kernels that a recipe names, for the time of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from gym_core import Run
from gym_data.provenance import identity
from gym_optim.promises import promised
from gym_torch.attention import cached_attention, fused_attention
from gym_torch.console import warn
from gym_torch.kernels import few_row_products, fused_modules, linear_products
from gym_torch.kernels.kernel_functions import KernelFunctions
from gym_torch.kinds import KernelLibrary, TorchBackend


@contextmanager
def in_use(run: Run) -> Iterator[None]:
    """Have the kernels that the backend of a run names tried in the block, beside those of the engine."""
    backend = run.recipe.model
    named = backend.kernel_libraries() if isinstance(backend, TorchBackend) else ()
    found = [opened(each) for each in named]
    libraries = [each for each in found if each]
    with ExitStack() as stack:
        for part in (fused_attention, fused_modules, linear_products, few_row_products, cached_attention):
            stack.enter_context(part.CHOICES.kept(run, libraries))
        yield


def opened(library: KernelLibrary) -> KernelFunctions | None:
    """Return what a library computes, or None, after a warning, where this machine lacks what it needs.

    Raises PluginError where it builds something else.
    """
    missing = library.missing()
    if missing:
        warn(f"model.kernels: {type(library).__name__} computes nothing here, it needs {missing}")
        return None
    found = promised(library.build(), KernelFunctions, library, "model.kernels")
    return replace(found, version=json.dumps([identity(library), found.version]))
