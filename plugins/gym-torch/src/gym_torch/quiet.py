"""Keeps back what libraries warn of when they are imported, and what nobody who trains can do anything about."""

from __future__ import annotations

import logging

#: By logger, the words of the message: kernels that are not for this machine or not used here, and a call between libraries.
KEPT_BACK = {
    "torchao": "Failed to load ",
    "torch.utils._pytree": " is an Enum subclass and is now natively supported",
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward from kernels-community",
}


def keep_back() -> None:
    """Have these messages logged nowhere; all others of the same libraries are."""
    for name, words in KEPT_BACK.items():
        logging.getLogger(name).addFilter(_Without(words))


class _Without(logging.Filter):
    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def filter(self, record: logging.LogRecord) -> bool:
        return self.words not in record.getMessage()
