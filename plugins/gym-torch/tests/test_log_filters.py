"""What libraries say that nobody can act on is kept back, and all else of theirs is not."""

from __future__ import annotations

import logging

import pytest

from gym_torch.log_filters import DROPPED

SAID = {
    "torchao": "Failed to load /a/_C_mxfp8.so: Could not load this library",
    "torch.utils._pytree": "<enum 'A'> is an Enum subclass and is now natively supported by torch.compile",
    "bitsandbytes.backends.cpu.ops": "Failed to load CPU gemm_4bit_forward from kernels-community: none",
}


@pytest.mark.parametrize("name", SAID)
def test_only_these_messages_are_kept_back(name: str) -> None:
    assert SAID.keys() == DROPPED.keys()
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        logger.warning(SAID[name])
        logger.warning("a weight is lost")
    finally:
        logger.removeHandler(handler)
    assert heard == ["a weight is lost"]
