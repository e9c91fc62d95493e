"""The lock under which transformers makes a model, and what keeps it from talking meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from transformers.utils import logging

#: transformers replaces functions of its classes while a model is made. Of two threads that do so at once, the second restores
#: what the first put there, and all later models of the process have untied or empty weights.
TRANSFORMERS_LOCK = RLock()


@contextmanager
def quiet() -> Iterator[None]:
    """Have transformers log errors alone in the block. Its bars stay off."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
