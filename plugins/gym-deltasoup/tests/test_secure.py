"""Sums of groups are exact with as many drop-outs as are allowed, nothing else is seen, and robust rules go behind them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

import gym_deltasoup as soup
from gym_core import GymError
from gym_deltasoup.secure.allowed import check_community
from gym_deltasoup.secure.collector import unmasked
from gym_deltasoup.secure.fixed_point import decoded, encoded, step
from gym_deltasoup.secure.group_merge import GroupSum, groups, merge_groups
from gym_deltasoup.secure.member import PublicKeys, Reveal, SecureMember
from gym_deltasoup.secure.shamir import join, split

CONTEXT = b"server/1/group 0"


def run(numbers, threshold, late=(), gone=()):
    """Return the sum of a group: `gone` share and send nothing, `late` send and then reveal nothing."""
    members = {name: SecureMember(name, CONTEXT) for name in numbers}
    keys = {name: member.advertise() for name, member in members.items()}
    sent = {name: member.share(keys, threshold) for name, member in members.items()}
    for name, member in members.items():
        member.receive({by: texts[name] for by, texts in sent.items() if by != name})
    masked = {name: members[name].masked(numbers[name]) for name in numbers if name not in gone}
    confirmed = {name: members[name].confirm([*masked]) for name in masked if name not in late}
    reveals = {name: members[name].reveal(confirmed) for name in confirmed}
    return unmasked(masked, reveals, keys, [*numbers], threshold, CONTEXT), masked


def drawn(count, size=37):
    draw = np.random.default_rng(count)
    return {f"user-{n}": draw.integers(0, 2**32, size, dtype=np.uint32) for n in range(count)}


@pytest.mark.parametrize("gone", range(4))
@pytest.mark.parametrize("late", range(4))
def test_sums_are_exact_with_drop_outs_at_any_step(gone, late):
    """Of 7 members 4 suffice."""
    numbers = drawn(7)
    left, slow = [*numbers][:gone], [*numbers][gone : gone + late]
    if gone + late > 3:
        with pytest.raises(GymError, match="are needed"):
            run(numbers, 4, slow, left)
        return
    total, masked = run(numbers, 4, slow, left)
    assert total.dtype == np.uint32
    assert np.array_equal(total, sum(numbers[name] for name in masked))


def test_what_is_sent_looks_like_noise():
    zeros = {f"user-{n}": np.zeros(20_000, np.uint32) for n in range(3)}
    total, masked = run(zeros, 2)
    assert not total.any()
    for values in masked.values():
        bits = np.unpackbits(values.view(np.uint8))
        assert abs(bits.mean() - 0.5) < 0.005 and len(np.unique(values)) > 19_900
    assert not np.array_equal(run(zeros, 2)[1]["user-0"], masked["user-0"])


def test_any_shares_that_suffice_give_the_secret_and_fewer_do_not():
    secret = bytes(range(32))
    shares = dict(enumerate(split(secret, 5, 3), 1))
    for some in combinations(shares, 3):
        assert join({point: shares[point] for point in some}) == secret
    assert len({*split(secret, 5, 3)} & {*shares.values()}) == 0
    with pytest.raises(ValueError, match="no secret"):
        join({point: shares[point] for point in (1, 2)})


def test_members_refuse_what_would_show_them():
    members = [SecureMember(name, CONTEXT) for name in "abc"]
    keys = {member.name: member.advertise() for member in members}
    with pytest.raises(GymError, match="1 of 3 is no safe threshold"):
        members[0].share(keys, 1)
    for wrong in (keys | {"a": PublicKeys(bytes(32), bytes(31) + b"1")}, keys | {"d": keys["c"]}):
        with pytest.raises(GymError, match="keys of different members"):
            members[0].share(wrong, 3)
    sent = {member.name: member.share(keys, 2) for member in members}
    with pytest.raises(GymError, match="1 members are left, and 2 are needed"):
        members[0].masked(np.zeros(1, np.uint32))
    with pytest.raises(GymError, match="the shares of b were not written for a"):
        members[0].receive({"b": sent["b"]["c"]})
    members[0].receive({"b": sent["b"]["a"], "c": sent["c"]["a"]})
    for came, match in (
        (["a"], "1 members are left"),
        (["b", "c"], "of a did not come"),
        (["a", "d"], "d shared nothing"),
    ):
        with pytest.raises(GymError, match=match):
            members[0].confirm(came)
    assert members[0].confirm(["b", "a"]) == members[0].confirm(["a", "b"]) == ["a", "b"]
    with pytest.raises(GymError, match="confirmed already, as others"):
        members[0].confirm(["a", "c"])
    with pytest.raises(GymError, match="1 members are left"):
        members[0].reveal({"a": ["a", "b"]})
    shown = members[0].reveal(dict.fromkeys("ab", "ab"))
    assert set(shown.own) == {"a", "b"} and set(shown.keys) == {"c"}
    with pytest.raises(GymError, match="never are a second time"):
        members[0].reveal(dict.fromkeys("ab", "ab"))


def test_a_server_that_tells_members_of_different_survivors_unmasks_nobody():
    """It tells half of a group that `c` came, and the other half that it dropped out, to get both halves of its masks."""
    members = {name: SecureMember(name, CONTEXT) for name in "abcde"}
    keys = {name: member.advertise() for name, member in members.items()}
    sent = {name: member.share(keys, 3) for name, member in members.items()}
    for name, member in members.items():
        member.receive({by: texts[name] for by, texts in sent.items() if by != name})
    told = {"a": "abcde", "b": "abcde", "c": "abcde", "d": "abde", "e": "abde"}
    confirmed = {name: member.confirm([*told[name]]) for name, member in members.items()}
    for name, member in members.items():
        with pytest.raises(GymError, match="was told of other members whose numbers came"):
            member.reveal(confirmed)
        if told[name] == "abde":  # without what contradicts them too few are left
            with pytest.raises(GymError, match="2 members are left, and 3 are needed"):
                member.reveal({other: confirmed[other] for other in "de"})
        with pytest.raises(GymError, match="was told of other members"):
            member.reveal({**dict.fromkeys("abc", confirmed[name]), "x": confirmed[name]})
    agreed = {name: confirmed[name] for name in "abc"}
    assert {*members["a"].reveal(agreed).own} == {*"abcde"} and not members["b"].reveal(agreed).keys


def test_shares_that_do_not_fit_are_noticed():
    members = {name: SecureMember(name, CONTEXT) for name in "abc"}
    keys = {name: member.advertise() for name, member in members.items()}
    sent = {name: member.share(keys, 2) for name, member in members.items()}
    for name, member in members.items():
        member.receive({by: texts[name] for by, texts in sent.items() if by != name})
    masked = {name: members[name].masked(np.ones(4, np.uint32)) for name in "ab"}
    confirmed = {name: members[name].confirm(["a", "b"]) for name in "ab"}
    reveals = {name: members[name].reveal(confirmed) for name in "ab"}
    lying = reveals | {"b": Reveal(reveals["b"].own, {"c": reveals["b"].keys["c"] + 1})}
    with pytest.raises(GymError, match="c"):
        unmasked(masked, lying, keys, "abc", 2, CONTEXT)
    assert unmasked(masked, reveals, keys, "abc", 2, CONTEXT).tolist() == [2] * 4


def test_fixed_point_is_exact_to_half_a_step_and_never_wraps():
    draw = torch.Generator().manual_seed(0)
    changes = [torch.randn(50, generator=draw, dtype=torch.float64) for _ in range(6)]
    cut = [each * min(1, 0.5 / float(each.norm())) for each in changes]
    total = sum(encoded(each, 0.5, 6) for each in changes)
    assert float((decoded(total, 0.5, 6) - sum(cut)).abs().max()) <= 3 * step(0.5, 6) * 1.01
    end = torch.zeros(50)
    end[3] = 9
    assert float(decoded(sum(encoded(end, 0.5, 6) for _ in range(6)), 0.5, 6)[3]) == pytest.approx(3.0)
    with pytest.raises(GymError, match="not finite"):
        encoded(end / 0, 0.5, 6)


def test_a_robust_rule_behind_the_groups_leaves_a_spoiled_one_out():
    """20 members in groups of 4; one of them sends anything."""
    draw, size = torch.Generator().manual_seed(1), 60
    good = 0.02 + 0.01 * torch.randn(20, size, generator=draw, dtype=torch.float64)
    names = [f"user-{n:02}" for n in range(20)]
    sums = {}
    for number, members in enumerate(groups(names, 4, seed=7)):
        numbers = {name: encoded(good[names.index(name)], 1.0, 4) for name in members}
        if "user-03" in members:
            numbers["user-03"] = np.full(size, 2**30, np.uint32)
        total, came = run(numbers, 3, gone=members[:1] if number == 1 and "user-03" not in members[:1] else ())
        sums[f"group {number}"] = GroupSum(decoded(total, 1.0, 4), len(came))
    made = merge_groups(soup.ByzantineRobust(), sums, hostile=1)
    assert made.tolerated_byzantine == 1 and float((made.vector - good.mean(0)).norm() / good.mean(0).norm()) < 0.3
    spoiled = merge_groups(soup.UniformSoup(), sums, hostile=0).vector
    assert float((spoiled - good.mean(0)).norm() / good.mean(0).norm()) > 3
    with pytest.raises(GymError, match="needs at least 7 inputs to tolerate 3 hostile ones"):
        merge_groups(soup.ByzantineRobust(), sums, hostile=3)


def test_what_looks_at_single_contributions_is_refused():
    sums = {name: GroupSum(torch.ones(3, dtype=torch.float64), 3) for name in "abcde"}
    for merger in (soup.GreedySoup(), soup.FLTrust(), soup.WeightedMean()):
        with pytest.raises(GymError, match="secure aggregation shows sums of groups alone"):
            merge_groups(merger, sums, 0)
    allowed = {"secure_aggregation": True, "enable_rewards": False, "byzantine_threshold": 0.1, "quality_threshold": 0}
    check_community(soup.DeltaSoupConfig(**allowed), evaluated=True)
    wrong = {
        "looks at single contributions": [
            {"enable_rewards": True}, {"enable_rewards": True, "reward_scheme": "leave_one_out"}, {"duplicate_cosine": 0.9},
            {"enable_rewards": True, "reward_scheme": "shapley"}, {"quality_threshold": 0.5}, {"reputation_memory": 0.9},
        ],
        "secure aggregation shows sums of groups alone": [{"method": "fltrust"}, {"method": soup.GreedySoup()}],
        "half of them": [{"byzantine_threshold": 0.3}, {"secure_group": 5}],
        "all weights are named": [{"rank": 4}],
        "numbers under masks": [{"kind": "adapter"}],
    }  # fmt: skip
    for match, changes in wrong.items():
        for change in changes:
            with pytest.raises(GymError, match=match):
                soup.DeltaSoup(soup.DeltaSoupConfig(**allowed | change), evaluate=lambda artifact: 1.0)
    with pytest.raises(GymError, match="hide nobody"):
        groups(["a", "b", "c"], 2, 0)
