"""What is declared of a quantized weight."""

from __future__ import annotations

import pytest

from gym_quant.config.stored import Scheme


@pytest.mark.parametrize(
    ("columns", "group", "fitted"),
    [(512, 128, 128), (192, 128, 64), (37, 128, 0), (128, 128, 0), (96, 128, 32), (8, 0, 0)],
)
def test_a_group_is_halved_until_it_divides_the_columns(columns, group, fitted):
    assert Scheme(4, group).fitted(columns).group == fitted
