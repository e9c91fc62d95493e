"""The order of several sources, and the split into training and validation."""

import pytest

from gym_data.mixing import MIXES, hold_out, in_rounds, order_of
from gym_data.row_reader import draw

A, B = order_of([0, 1, 2, 3]), order_of([10, 11])


@pytest.mark.parametrize(
    ("how", "order"),
    [
        ("concat", [0, 1, 2, 3, 10, 11]),
        ("interleave_under", [0, 10, 1, 11]),
        ("interleave_over", [0, 10, 1, 11, 2, 10, 3, 11]),
        ("interleave_once", [0, 10, 1, 11, 2, 3]),
    ],
)
def test_strictly_in_turn(how, order):
    assert [*MIXES[how]([A, B], None, 0)] == order


@pytest.mark.parametrize("weights", [None, [0.5, 0.2, 0.3]])
@pytest.mark.parametrize("sizes", [(4, 2, 3), (2, 4, 4), (1, 1, 1), (5, 9, 1)])
def test_the_order_is_that_of_datasets(sizes, weights):
    """By which LLaMA-Factory mixes; the same seed draws the same turns."""
    datasets = pytest.importorskip("datasets")
    sources = [order_of(range(100 * number, 100 * number + size)) for number, size in enumerate(sizes)]
    parts = [datasets.Dataset.from_dict({"number": source.tolist()}) for source in sources]
    named = {"under": "first_exhausted", "over": "all_exhausted", "once": "all_exhausted_without_replacement"}
    for how, theirs in named.items():
        for seed in range(4):
            mixed = datasets.interleave_datasets(parts, weights, seed=seed, stopping_strategy=theirs)
            assert [*MIXES[f"interleave_{how}"](sources, weights, seed)] == [*mixed["number"]], (how, seed)


def test_weights_decide_how_often_and_the_seed_when():
    many = [order_of(range(10_000)), order_of(range(10_000, 20_000))]
    first, again, other = (order_of([*MIXES["interleave_under"](many, [3, 1], seed)]) for seed in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()
    assert abs((first < 10_000).mean() - 0.75) < 0.02
    assert sorted(MIXES["interleave_once"]([A, B], [9, 1], 0)) == [0, 1, 2, 3, 10, 11]
    assert set(MIXES["interleave_over"]([A, B], [9, 1], 0)) == {0, 1, 2, 3, 10, 11}


@pytest.mark.parametrize("validation", [0.2, 20])
def test_a_share_or_a_number_is_held_out_and_nothing_is_on_both_sides(validation):
    order = order_of(range(100))
    train, held = hold_out(order, list(range(100)), validation, 0)
    assert len(held) == 20 and sorted([*train, *held]) == list(range(100))
    assert held.tolist() == hold_out(order, list(range(100)), validation, 0)[1].tolist()
    assert held.tolist() != hold_out(order, list(range(100)), validation, 1)[1].tolist()


def test_a_share_that_is_held_out_is_rounded_up():
    """As `train_test_split` of datasets rounds, which LLaMA-Factory calls."""
    for rows, share, wanted in ((91, 0.1, 10), (3, 0.1, 1), (10, 0.2, 2)):
        assert len(hold_out(order_of(range(rows)), list(range(rows)), share, 0)[1]) == wanted


def test_equal_contents_stay_on_one_side():
    groups = [number // 4 for number in range(100)]
    order = order_of([*range(100), *range(50)])
    train, held = hold_out(order, groups, 0.3, 0)
    assert not {groups[i] for i in train} & {groups[i] for i in held}
    assert len(set(held.tolist())) == len(held)


def test_nothing_is_held_out_unless_asked():
    train, held = hold_out(A, [0] * 4, 0, 0)
    assert (train.tolist(), len(held)) == ([0, 1, 2, 3], 0)


def test_drawing_takes_each_as_often_as_any_other_or_once_more():
    few = draw(10, 4, 0)
    assert len(few) == 4 and set(few.values()) == {1} and few != draw(10, 4, 1)
    for wanted in (10, 25, 99):
        many = draw(10, wanted, 0)
        assert sorted(many) == list(range(1, 11)) and sum(many.values()) == wanted
        assert max(many.values()) - min(many.values()) <= 1
    assert draw(0, 3, 0) == {}


def test_what_comes_several_times_comes_in_rounds():
    order = in_rounds([4, 5, 6, 7], [1, 3, 2, 3]).tolist()
    assert order == [4, 5, 6, 7, 5, 6, 7, 5, 7]
    assert in_rounds([], []).tolist() == []
