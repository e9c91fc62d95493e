"""Kernels in Triton are compiled for a GPU where there is none: its interpreter takes more than its compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TARGET = ("cuda", 90, 32)  #: Hopper, with warps of 32 threads


def compiled(kernel: Any, signature: Mapping[str, str], constants: Mapping[str, Any]) -> bytes:
    """Return the machine code of a kernel.

    `signature` gives the types of arguments as Triton writes them, such as `*bf16` and `i32`; `constants` are its `constexpr`.
    Raises `triton.CompilationError`, or what its assembler says.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kinds = dict.fromkeys(constants, "constexpr")
    ordered = {name: {**signature, **kinds}[name] for name in kernel.arg_names}
    done = triton.compile(ASTSource(kernel, ordered, dict(constants)), target=GPUTarget(*TARGET))
    code: bytes = done.asm["cubin"]
    return code
