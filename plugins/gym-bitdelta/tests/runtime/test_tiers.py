"""Tenants in memory: bounded in bytes, kept while in use, read without anybody else waiting, refused by name."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from random_deltas import BASE, coded, of_model, whole
from transformers import AutoConfig, AutoModelForCausalLM

from gym_bitdelta.delta import file, records
from gym_bitdelta.delta.header import Dense
from gym_bitdelta.runtime.tenant_model import TenantModel
from gym_core import GymError

TOKENS = torch.tensor([[1, 2, 3]])
WEIGHT = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def base():
    torch.manual_seed(0)
    options = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **options, **heads)).eval()


@pytest.fixture(scope="module")
def deltas(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deltas")
    for seed, name in enumerate("abcde"):
        file.write(folder / name, of_model(base, seed + 1))
    return folder


@pytest.fixture
def made(base, deltas):
    """Return what makes a model for tenants, and closes it when the test ends."""
    found = []

    def make(locate=lambda name: deltas / name, **options):
        found.append(TenantModel(base, locate, BASE, **options))
        return found[-1]

    yield make
    for model in reversed(found):
        model.close()


def answer(served, *rows):
    with served.serving(rows):
        return served.model(TOKENS.expand(len(rows), -1)).logits


def test_both_tiers_stay_within_their_bytes_and_the_least_recent_leave(made, deltas):
    probe = made()
    wanted = {name: answer(probe, name) for name in "abcde"}
    prepared, packed = probe.tiers.prepared.bytes // 5, probe.tiers.packed.bytes // 5
    probe.close()
    reads = []

    def locate(name):
        reads.append(name)
        return deltas / name

    served = made(locate, prepared_bytes=int(prepared * 2.5), packed_bytes=int(packed * 3.5))
    for name in "abcab":
        assert torch.equal(answer(served, name), wanted[name])
    assert reads == ["a", "b", "c"], "what left the prepared tier is still in the packed one"
    for name in "dea":
        assert torch.equal(answer(served, name), wanted[name])
    assert reads == [*"abcdea"] and [name in served.tiers.packed for name in "abcde"] == [
        True,
        False,
        False,
        True,
        True,
    ]
    for tier, count in ((served.tiers.prepared, 2), (served.tiers.packed, 3)):
        assert len(tier) == count and tier.bytes <= tier.peak <= tier.limit


def test_what_is_in_use_stays_and_what_does_not_fit_beside_it_is_refused(made):
    probe = made()
    wanted = answer(probe, "a", "b")
    room = int(probe.tiers.prepared.bytes * 1.2)
    probe.close()
    served = made(prepared_bytes=room)
    with served.lease(["a", "b"]) as lease:
        with pytest.raises(GymError, match="no room for `c`"):
            answer(served, "c")
        with lease.serving(["a", "b"]):
            assert torch.equal(served.model(TOKENS.expand(2, -1)).logits, wanted)
    assert answer(served, "c").shape == (1, 3, 50)


def test_a_tenant_that_changes_while_it_is_served_changes_for_the_next_one(made, base, tmp_path):
    path = tmp_path / "a"
    file.write(path, of_model(base, 1))
    served = made(lambda name: path)
    with served.lease(["a"]) as lease:
        with lease.serving(["a"]):
            before = served.model(TOKENS).logits
        file.write(path, of_model(base, 2))
        served.forget("a")
        after = answer(served, "a")
        path.unlink()
        served.forget("a")
        with lease.serving(["a"]):
            assert torch.equal(served.model(TOKENS).logits, before)
    assert not torch.equal(before, after)
    with pytest.raises(GymError, match="there is no such delta"):
        answer(served, "a")
    file.write(path, of_model(base, 2))
    assert torch.equal(answer(served, "a"), after)


def test_what_is_forgotten_counts_while_it_is_used(made):
    """A process that updates its tenants while it serves them holds both versions, and the bound is of both."""
    served = made()
    sizes = {}
    for name in "abc":
        answer(served, name)
        sizes[name] = served.tiers.prepared.bytes
        served.forget(name)
    assert served.tiers.prepared.bytes == 0
    with served.lease(["a", "b"]):
        both = sizes["a"] + sizes["b"]
        for _ in range(2):
            served.forget("a")
            assert served.tiers.prepared.bytes == both
        with served.lease(["a"]):  # the same name, read anew
            assert served.tiers.prepared.bytes == both + sizes["a"]
            served.tiers.prepared.limit = both + max(sizes["a"], sizes["c"])
            with pytest.raises(GymError, match="no room for `c`"):
                answer(served, "c")
        answer(served, "c")  # the second `a`, which nobody uses, makes room
        assert "a" not in served.tiers.prepared
    assert served.tiers.prepared.bytes == sizes["b"] + sizes["c"]
    served.forget("b")
    served.forget("c")
    assert served.tiers.prepared.bytes == 0


def test_who_is_there_waits_for_nobody_that_is_read(made, deltas):
    reading, go = threading.Event(), threading.Event()

    def locate(name):
        if name == "b":
            reading.set()
            assert go.wait(30)
        return deltas / name

    served = made(locate)
    alone = answer(served, "a")
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(answer, served, "b", "a")
        assert reading.wait(30)
        assert torch.equal(answer(served, "a"), alone)
        assert not slow.done()
        go.set()
        assert torch.equal(slow.result()[1], answer(served, "b", "a")[1])


def test_threads_serve_batches_of_their_own(made):
    served = made()
    mixes = [("a", "b", None), ("c", "a"), ("d", None, "b", "e")]
    wanted = [answer(served, *mix) for mix in mixes]
    with ThreadPoolExecutor(3) as threads:
        for _ in range(5):
            for found, right in zip(threads.map(lambda mix: answer(served, *mix), mixes), wanted, strict=True):
                assert torch.equal(found, right)


def wrong_base(base):
    delta = of_model(base, 1)
    return replace(delta, header=delta.header.model_copy(update={"base": "f" * 64}))


@pytest.mark.parametrize(
    ("delta", "says"),
    [
        (wrong_base, "belongs to another base"),
        (
            lambda base: whole({WEIGHT: coded(Dense(shape=(48, 31), code="signs", scales="row"))}),
            r"of shape \[48, 31\]",
        ),
        (lambda base: whole({"lm_head.bias": records.raw(torch.ones(50))}), "it is not there"),
    ],
)
def test_a_delta_of_another_model_is_refused_by_name(made, base, tmp_path, delta, says):
    file.write(tmp_path / "x", delta(base))
    served = made(lambda name: tmp_path / name)
    with pytest.raises(GymError, match=says):
        answer(served, "x")
    assert answer(served, None).shape == (1, 3, 50) and not len(served.tiers.prepared)


def test_batches_of_other_rows_than_tenants_are_refused(made):
    served = made()
    with served.serving(["a", "b"]), pytest.raises(GymError, match="a batch of 3 rows is computed for 2 tenants"):
        served.model(TOKENS.expand(3, -1))
    with pytest.raises(GymError, match="1 tenants for 2 prompts"):
        served.generate([[1], [2]], ["a"], 1)
