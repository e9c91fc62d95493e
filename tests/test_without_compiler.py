"""What has C code computes the same without a compiler, and on older processors: its tests pass with `GYM_COMPILE_C=0` too, and
held to AVX2.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gym_testkit import warm

ROOT = Path(__file__).parents[1]
#: By C file, the tests of what it computes that ask nothing of the C code itself.
TESTS = {
    "gym-bitdelta/src/gym_bitdelta/runtime/planes.c": ("gym-bitdelta/tests/runtime/test_products.py",),
    "gym-torch/src/gym_torch/kernels/bf16_products.c": ("gym-adapters/tests/test_lora_product.py",),
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


#: Says what the C code is compiled for, and runs tests in the same process.
HELD = """
import sys, pytest, torch
from gym_torch.kernels import decoding_kernels
found = decoding_kernels.kernel(torch.float32)
print(found and found.name)
sys.exit(pytest.main(sys.argv[1:]))
"""
NUMBERS = "of_its_definition or as_defined or as_they_do_alone or those_of_the_definition or as_near_to_fp32"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AVX2 is of other processors")
def test_what_has_c_code_is_right_on_an_older_processor():
    """`test_fused_attention.py` compiles its file for them itself; other tests use what this processor has."""
    files = [ROOT / f"plugins/gym-torch/tests/test_{name}.py" for name in ("fused_ops", "decoding_kernels")]
    command = [sys.executable, "-c", HELD, *map(str, files), "-p", "no:cacheprovider", "-k", NUMBERS]
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    if done.stdout.startswith("None"):
        pytest.skip("no compiler")
    assert done.stdout.startswith("avx2\n"), done.stdout
    told = re.search(r"(\d+) passed", done.stdout)
    assert told and int(told[1]) > 100, done.stdout
