"""The kernel in Triton compiles for a GPU, on a machine without one."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the kernels are interpreted", allow_module_level=True)

from gym_bitdelta.runtime.triton_products import TOKENS, Field, add_products
from gym_testkit.triton_code import compiled


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("second", [0, 1])
def test_the_products_compile(dtype, second):
    signature = {"y": f"*{dtype}", "x": f"*{dtype}", "y_row": "i32", "x_row": "i32"}
    tables = dict.fromkeys(("place", "record", "tokens"), "*i64")
    assert compiled(add_products, signature | tables, {"fields": len(Field), "BLOCK": TOKENS, "SECOND": second})
