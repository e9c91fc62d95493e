"""Processes to measure in, one to a processor core: what is small gains more from a core of its own than from a second thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread


@contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """Open a pool of fresh processes of one thread each; what has not begun is dropped where the script fails."""
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes read it where they load torch
    pool = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"), initializer=_end_with_parent)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Have this process end when the one that made it is gone, in the middle of whatever it does."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    Thread(target=watch, daemon=True).start()
