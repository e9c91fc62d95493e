"""Imports transformers' modules of models without libraries that they import for what Gym does not use."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from functools import _lru_cache_wrapper

#: Libraries that these modules import where they are installed, although no model needs them: losses of object detection
#: (scipy), a quantized cache (hqq, and with it torch's compiler) and saving models of torchao. A second on a fast machine.
UNUSED = ("hqq", "scipy", "torchao")


def import_models() -> None:
    """Import transformers' base of all models; to be called before anything else imports it.

    While that lasts, Python finds none of `UNUSED`; afterwards transformers finds them as ever. So only the names that those
    modules take from them on import are missing. With other threads, which may import such a library, nothing is hidden.
    """
    if "transformers.modeling_utils" in sys.modules or threading.active_count() > 1:
        return
    import accelerate  # noqa: F401  # asks for libraries as well, and keeps the answers
    from transformers.utils import import_utils

    answers = (import_utils.is_hqq_available, import_utils.is_scipy_available, import_utils.is_torchao_available)
    hidden = [name for name in UNUSED if name not in sys.modules]
    _forget(answers)
    try:
        for name in hidden:
            sys.modules[name] = None  # type: ignore[assignment]  # says that there is no such module
        import transformers.modeling_utils  # noqa: F401
    except ImportError:
        pass  # of something else that needs one of them; who needs transformers imports it again, and finds them
    finally:
        for name in hidden:
            del sys.modules[name]
        _forget(answers)


def _forget(answers: Iterable[_lru_cache_wrapper[bool]]) -> None:
    for answer in answers:
        answer.cache_clear()
