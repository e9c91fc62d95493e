"""Imports libraries without what they import only because it is installed, and that Gym does not use."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Imported by transformers with the base of its models, although no model needs them: losses of object detection (scipy), a
#: quantized cache (hqq, and with it torch's compiler) and saving models of torchao.
UNUSED = ("hqq", "scipy", "torchao")


def import_models() -> None:
    """Import transformers' base of all models; to be called before anything else imports it."""
    if "transformers.modeling_utils" in sys.modules:
        return
    import accelerate  # noqa: F401  # asks for libraries as well, and keeps the answers
    from transformers.utils.import_utils import is_hqq_available, is_scipy_available, is_torchao_available

    answers = (is_hqq_available, is_scipy_available, is_torchao_available)
    for answer in answers:
        answer.cache_clear()
    with hidden(*UNUSED):
        import transformers.modeling_utils  # noqa: F401
    for answer in answers:
        answer.cache_clear()


@contextmanager
def hidden(*libraries: str) -> Iterator[None]:
    """While entered, Python finds none of these libraries, unless it is loaded; afterwards each is found as ever.

    What is imported here lacks only the names that it takes from them on import. Where something else needs one, or other
    threads may, nothing is hidden: an ImportError inside is dropped, and who imports the same again finds all of them.
    """
    names = [name for name in libraries if name not in sys.modules and threading.active_count() == 1]
    try:
        for name in names:
            sys.modules[name] = None  # type: ignore[assignment]  # says that there is no such module
        yield
    except ImportError:
        pass
    finally:
        for name in names:
            del sys.modules[name]
