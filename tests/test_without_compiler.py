"""What has C code computes the same without a compiler: its tests pass with `GYM_COMPILE_C=0` too."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gym_testkit import warm

ROOT = Path(__file__).parents[1]
#: By C file, the tests of what it computes that ask nothing of the C code itself.
TESTS = {
    "gym-bitdelta/src/gym_bitdelta/runtime/planes.c": ("gym-bitdelta/tests/runtime/test_products.py",),
    "gym-torch/src/gym_torch/kernels/decoding_kernels.c": ("gym-torch/tests/test_decoding.py",),
    "gym-torch/src/gym_torch/attention/fused_attention.c": ("gym-torch/tests/test_packing.py",),
    "gym-torch/src/gym_torch/kernels/fused_ops.c": (
        "gym-torch/tests/test_linear_head.py",
        "gym-torch/tests/test_shared_input_casts.py",
    ),
}


def test_what_has_c_code_is_right_without_it():
    """One process for all: on a machine without a compiler the fallbacks of all of them run together."""
    plugins = ROOT / "plugins"
    there = {path.relative_to(plugins).as_posix() for path in plugins.glob("*/src/**/*.c")}
    assert there == TESTS.keys(), "each C file needs tests that pass without it"
    files = [str(plugins / file) for files in TESTS.values() for file in files]
    environment = {**os.environ, "GYM_COMPILE_C": "0"}
    done = warm.run("-m", "pytest", *files, "-p", "no:cacheprovider", cwd=ROOT, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout
    told = re.search(r"(\d+) passed(?:, (\d+) skipped)?", done.stdout)
    assert told and int(told[1]) > 10 * len(there) and int(told[2] or 0) < int(told[1]) / 10, done.stdout
