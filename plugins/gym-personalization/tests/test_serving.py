"""Requests of many users in one engine: each is answered as alone, by the newest version, whatever happens to others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from gym_bitdelta.delta import file, records
from gym_bitdelta.runtime.tenant import Tenant
from gym_bitdelta.runtime.tenant_cache import NoRoomError, Tiers
from gym_bitdelta.runtime.tenant_model import Lease
from gym_bitdelta.store import VariantStore
from gym_core import Artifact, GymError
from gym_data.tokenizer import Tokenizer
from gym_personalization.opened_variants import OpenedVariants
from gym_personalization.serving import Request, ServingEngine
from gym_torch.checkpoints.base_fingerprint import base_fingerprint
from gym_torch.checkpoints.open_artifact import open_artifact
from gym_torch.generation.generator import complete

USERS = ("ann", "ben", "cleo")
ASK = "What do I like?"


def delta(base: Path, into: Path, seed: int) -> Artifact:
    """Write a delta that changes every matrix of the layers at random, so that each seed answers otherwise."""
    draws, found = torch.Generator().manual_seed(seed), {}
    with safe_open(next(base.glob("*.safetensors")), "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - it is no mapping
            shape = weights.get_tensor(name).shape
            if "layers" in name and len(shape) == 2:
                found[name] = records.raw(torch.randn(shape, generator=draws) * 0.3)
    into.mkdir(parents=True)
    file.write(into / file.NAME, file.made(base_fingerprint(base), found, {}, {}))
    return Artifact(into, "delta", str(base), {"delta": "gym_bitdelta:BitDelta"})


@pytest.fixture
def store(model_path: Path, tmp_path: Path) -> Iterator[VariantStore]:
    with VariantStore(tmp_path / "store") as made:
        for seed, user in enumerate(USERS):
            made.create(user, delta(model_path, tmp_path / user, seed))
        yield made


@pytest.fixture
def engine(store: VariantStore) -> Iterator[ServingEngine]:
    made = ServingEngine(store)
    yield made
    made.close()


def alone(store: VariantStore, user: str, model_path: Path, prompt: str = ASK, **options: object) -> str:
    """Return the answer of the merged model."""
    with store.open(user) as found:
        model = open_artifact(found.artifact).model
        rows = [{"messages": [{"role": "user", "content": prompt}]}]
        return complete(model, Tokenizer(model_path), rows, 12, **options)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mixed_batch_answers_as_each_alone(
    engine: ServingEngine, store: VariantStore, model_path: Path, temperature: float
) -> None:
    """Greedy and sampled, prompts of several lengths, a user twice: as the merged model of that user alone."""
    asked = [(user, prompt) for user in USERS for prompt in (ASK, "1?")]
    options = {"temperature": temperature, "seed": 5}
    found = engine.submit_all([Request(user, prompt, 12, **options) for user, prompt in asked])  # type: ignore[arg-type]
    expected = [alone(store, user, model_path, prompt, **options) for user, prompt in asked]
    assert [each.result() for each in found] == expected
    assert len(set(expected)) == len(expected)


def test_the_newest_version_answers_and_one_that_is_gone_does_not(
    engine: ServingEngine, store: VariantStore, model_path: Path, tmp_path: Path
) -> None:
    before = engine.submit("ann", ASK, max_new_tokens=12).result()
    store.update("ann", delta(model_path, tmp_path / "again", 7))
    after = engine.submit("ann", ASK, max_new_tokens=12).result()
    assert before != after == alone(store, "ann", model_path)
    store.remove("ann")
    store.gc()
    asked = engine.submit_all([Request(user, ASK, 12) for user in USERS])
    with pytest.raises(GymError, match="no variant of `ann`"):
        asked[0].result()
    assert [each.result() for each in asked[1:]] == [alone(store, user, model_path) for user in USERS[1:]]


@torch.no_grad()
def test_a_request_goes_on_with_its_version(store: VariantStore, model_path: Path, tmp_path: Path) -> None:
    """What is replaced, removed, collected and evicted while a batch has it stays what it was; the next batch sees the change."""
    opened = OpenedVariants(store, torch.float32, 1, 2**20, None)
    with ExitStack() as stack:
        ready = opened.ready("ann", stack)
        assert ready.tenant is not None
        name, held = ready.name, ready.tenant
        tokens = torch.tensor([ready.tokens(ASK)])
        with store.open("ann") as found:
            expected = open_artifact(found.artifact).model(tokens).logits
        store.update("ann", delta(model_path, tmp_path / "again", 7))
        store.gc()
        with ExitStack() as other:
            newer = opened.ready("ann", other)  # lets go of the one before
            assert newer.tenant is not None and newer.name != name
            with Lease(opened.shared, {name: held, newer.name: newer.tenant}).serving([name, newer.name]):
                both = ready.model(tokens.expand(2, -1)).logits
        store.remove("ann")
        with Lease(opened.shared, {name: held}).serving([name]):
            again = ready.model(tokens).logits
    opened.close()
    assert torch.allclose(both[0], expected[0], atol=1e-5) and torch.allclose(again, expected, atol=1e-5)
    assert not torch.allclose(both[1], expected[0], atol=1e-2)


def test_users_who_do_not_fit_in_together_take_turns(store: VariantStore, model_path: Path) -> None:
    """Memory for one delta at a time: a batch of three becomes three. Memory for none is told by its key."""
    whole = OpenedVariants(store, torch.float32, 2**20, 2**20, None)
    with ExitStack() as stack:
        sizes = [whole.ready(user, stack).tenant.bytes for user in USERS]  # type: ignore[union-attr]
    whole.close()
    for room, fits in ((max(sizes) + 1, True), (1, False)):
        engine = ServingEngine(store, prepared_bytes=room)
        asked = engine.submit_all([Request(user, ASK, 12) for user in USERS])
        if fits:
            assert [each.result() for each in asked] == [alone(store, user, model_path) for user in USERS]
        else:
            assert all("prepared_bytes" in str(each.exception()) for each in asked)
        engine.close()


def test_the_last_of_the_others_may_end_during_a_try(
    store: VariantStore, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that found no room, and then nobody in use any more, tries again."""
    whole = OpenedVariants(store, torch.float32, 2**20, 2**20, None)
    with ExitStack() as stack:
        sizes = [whole.ready(user, stack).tenant.bytes for user in USERS]  # type: ignore[union-attr]
    whole.close()
    engine, refused = ServingEngine(store, prepared_bytes=max(sizes) + 1), 0
    pin = Tiers.pin

    def late(tiers: Tiers, names: Iterable[str]) -> dict[str, Tenant]:
        """Tell of a refusal once nobody has anything in use."""
        nonlocal refused
        try:
            return pin(tiers, names)
        except NoRoomError:
            refused += 1
            first.result()
            time.sleep(0.2)
            raise

    monkeypatch.setattr(Tiers, "pin", late)
    first, second = engine.submit_all([Request(user, ASK, 48) for user in USERS[:2]])
    assert second.result() and refused
    engine.close()


def test_what_is_wrong_with_one_disturbs_no_other(engine: ServingEngine, store: VariantStore, model_path: Path) -> None:
    """A damaged file, another base, a name that is none and a prompt that is none: each is told to who asked."""
    damaged = store.get("ben").files
    path = store.root / "files" / damaged[-1].sha256[:2] / damaged[-1].sha256[2:]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with store.open("cleo") as found:
        other = file.read(found.path / file.NAME)
        folder = store.root.parent / "other"
        folder.mkdir()
        file.write(folder / file.NAME, file.made("0" * 64, other.records, {}, {}))
    store.update("cleo", Artifact(folder, "delta", str(model_path), {"delta": "gym_bitdelta:BitDelta"}))
    asked = engine.submit_all([Request(user, ASK, 12) for user in ("ann", "ben", "cleo", "../dan", "ann")])
    assert asked[0].result() == asked[4].result() == alone(store, "ann", model_path)
    for number, said in ((1, "`delta.safetensors` of `ben`"), (2, "another base"), (3, "path")):
        assert said in str(asked[number].exception()), asked[number].exception()
    with pytest.raises(GymError, match="no prompt"):
        engine.submit("ann", [])
    for prompt in ("\ud800", [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": None}]):
        with pytest.raises(GymError, match="the prompt cannot be laid out"):
            engine.submit("ann", prompt).result()  # type: ignore[arg-type]
    for name, values in (
        ("max_new_tokens", (0, -1, "5", 1.5)),
        ("temperature", (-1, float("nan"))),
        ("seed", (-1, 0.5)),
    ):
        for value in values:
            with pytest.raises(GymError, match=f"is no {name}"):
                engine.submit("ann", ASK, **{name: value})
    cancelled = engine.submit("ann", ASK)
    if cancelled.cancel():
        assert engine.submit("ann", ASK, max_new_tokens=2).result() is not None


def test_a_closed_engine_answered_what_was_asked(store: VariantStore) -> None:
    engine = ServingEngine(store)
    engine.load("ann")
    asked = engine.submit("ann", ASK, max_new_tokens=4)
    engine.close()
    assert asked.done() and isinstance(asked.result(), str)
    with pytest.raises(GymError, match="closed"):
        engine.submit("ann", ASK)


def test_a_prompt_beyond_the_positions_of_the_model_is_told(engine: ServingEngine, model_path: Path) -> None:
    words = Tokenizer(model_path)
    longest = open_artifact(Artifact(model_path)).model.config.max_position_embeddings

    def left(words_of: int) -> int:
        """Return how many tokens a prompt of so many words leaves."""
        messages = [{"role": "user", "content": "b " * words_of}]
        return longest - len(words.chat(messages, None, generation_prompt=True)[0])

    most = max(count for count in range(1, longest) if left(count) > 0)
    answer = engine.submit("ann", "b " * most, max_new_tokens=500)
    with pytest.raises(GymError, match=f"may have {longest - 1:,}"):
        engine.submit("ann", "b " * (most + 1), max_new_tokens=1).result(timeout=60)
    assert left(most) < 10 and len(answer.result(timeout=60)) < 100
    assert engine.submit("ben", ASK, max_new_tokens=4).result(timeout=60)
