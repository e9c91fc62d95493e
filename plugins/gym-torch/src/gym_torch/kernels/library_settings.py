"""What the libraries below torch read from the environment."""

from __future__ import annotations

import os


def set_libraries() -> None:
    """Have all of them as below; to be called where the engine starts, before torch is imported."""
    wait_passively()
    keep_few_products()


def wait_passively() -> None:
    """Have idle threads sleep, unless the environment says otherwise; to be called before torch is imported.

    OpenMP reads the setting on import. Threads would otherwise spin, and on a machine with other processes a small model
    takes ten times as long. Results are the same.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def keep_few_products() -> None:
    """Have oneDNN keep the code of few products, unless the environment says otherwise; to be called before the first product.

    It compiles code for each number of rows, and torch has it keep a thousand of each kind: hundreds of megabytes after some
    hundred steps of different length, and gaps in memory between them. One step of a model has some dozen products.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "128")
