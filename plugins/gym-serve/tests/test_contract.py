"""What a front may rely on before any engine is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gym_core import GymError
from gym_core.loading import base_class
from gym_serve import Server, errors


def test_the_contract_needs_no_torch() -> None:
    code = "import sys, gym_serve.contract, gym_serve.errors, gym_serve.kinds; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_servers_are_a_kind() -> None:
    assert base_class("servers") is Server


ERRORS = [one for one in errors.RequestError.__subclasses__() if one.__module__ == errors.__name__]


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_of_a_request_has_a_status_of_its_own(error: type[errors.RequestError]) -> None:
    assert issubclass(error, GymError) and 400 <= error.status < 500
    assert [one.status for one in ERRORS].count(error.status) == 1
    assert errors.Full("the queue is full", 2.5).retry_after == 2.5
