"""What concerns every pytest of the tree: how it collects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage in a million objects that are there to stay: while tests are collected, and in them afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Let libraries find what is theirs when the process ends; some print what they miss."""
    gc.unfreeze()
