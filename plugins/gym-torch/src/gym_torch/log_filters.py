"""Drops log messages of libraries that appear on import and that a user can do nothing about."""

from __future__ import annotations

import logging

#: By logger, words of the message: about kernels that this machine cannot use, and a deprecated call between libraries.
DROPPED = {
    "torchao": "Failed to load ",
    "torch.utils._pytree": " is an Enum subclass and is now natively supported",
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward from kernels-community",
}


def drop_log_messages() -> None:
    """Filter these messages out; all others of the same libraries are logged."""
    for name, words in DROPPED.items():
        logging.getLogger(name).addFilter(_Without(words))


class _Without(logging.Filter):
    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words

    def filter(self, record: logging.LogRecord) -> bool:
        return self.words not in record.getMessage()
