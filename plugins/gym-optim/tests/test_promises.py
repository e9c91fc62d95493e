"""What a component says of itself is what its kind asks for, whoever overrides it and however."""

from __future__ import annotations

from typing import ClassVar

import pytest

from gym_core.errors import PluginError
from gym_optim.promises import Held, promised


class Kind(Held):
    """A kind."""

    kind: ClassVar[str] = "optimizers"

    def able(self) -> bool:
        """Whether it can."""
        return False

    def size(self) -> int | None:
        """Return its size."""
        return None

    def bound(self, most: float) -> float:
        """Return at most so much."""
        return most


class Between(Kind):
    def able(self):
        return True


class Mixed:
    def able(self):
        return "yes"


class Mixture(Mixed, Between):
    """Says what a class says that is no component."""


class Odd(Between):
    answer: object = None

    def able(self):
        return super().able() and self.answer

    def size(self):
        return self.answer

    def bound(self, most):
        return self.answer


@pytest.mark.parametrize("answer", [None, 1, "yes", 0.5])
def test_what_is_no_truth_is_refused(answer):
    with pytest.raises(PluginError) as caught:
        Odd(answer=answer).able()
    (problem,) = caught.value.problems
    assert f"test_promises.Odd.able returned {answer!r}, which is no bool" in problem.why
    assert problem.key == "optimizer" and problem.fix.startswith("return bool")


@pytest.mark.parametrize("answer", [True, "3", 3.0])
def test_what_is_no_number_is_refused(answer):
    with pytest.raises(PluginError, match=r"which is no int \| None"):
        Odd(answer=answer).size()


def test_what_is_promised_passes():
    assert Between().able() is True and Odd(answer=False).able() is False
    assert Odd(answer=3).size() == 3 and Odd().size() is None
    assert Odd(answer=3).bound(most=5) == 3 and Odd(answer=0.5).bound(5) == 0.5
    with pytest.raises(PluginError):
        Odd(answer=True).bound(1.0)


def test_what_a_mixin_says_is_looked_at_too():
    with pytest.raises(PluginError, match=r"Mixture\.able returned 'yes'"):
        Mixture().able()


def test_who_returned_what_is_no_promise_is_named():
    assert promised(3, int, "f") == 3
    with pytest.raises(PluginError, match=r"test_promises\.Odd\.build returned a str, which is no int"):
        promised("3", int, Odd(), "model")
