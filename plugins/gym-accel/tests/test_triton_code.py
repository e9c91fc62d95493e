"""Every kernel in Triton compiles for a GPU, on a machine without one."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the kernels are interpreted", allow_module_level=True)

from triton.runtime.jit import JITFunction

from gym_accel import triton_kernels
from gym_testkit.triton_code import compiled

DATA = ("given", "weight", "out", "gate", "up", "by_out", "by_given", "by_gate", "by_up", "cos", "sin", "logits")
NUMBERS = (
    "dim",
    "rows",
    "each",
    "gate_row",
    "up_row",
    "tokens",
    "heads",
    "half",
    "row",
    "head",
    "token",
    "along",
    "size",
)
TYPES = {"eps": "fp32", "labels": "*i64", **dict.fromkeys(("inverse", "by_weight", "scores"), "*fp32")}
SIZES = {"BLOCK": 128, "HEADS": 4}
KERNELS = {
    name: kernel
    for name, kernel in vars(triton_kernels).items()
    if isinstance(kernel, JITFunction) and not name.startswith("_")
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles(name, flag, dtype):
    kernel = KERNELS[name]
    constants = {each: SIZES.get(each, flag) for each in kernel.arg_names if each.isupper()}
    if flag and flag not in constants.values():
        pytest.skip("it has no switch")
    types = {**TYPES, **dict.fromkeys(DATA, f"*{dtype}"), **dict.fromkeys(NUMBERS, "i32")}
    assert compiled(kernel, types, constants)
