"""Variants that are models of their own: opened once, whoever asks at once, and let go of; and no question without an end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from gym_bitdelta.store import VariantStore
from gym_core import Artifact
from gym_data.tokenizer import Tokenizer
from gym_personalization import lanes, opened_variants, serving
from gym_personalization.opened_variants import ALONE, OpenedVariants, Ready
from gym_personalization.serving import ServingEngine
from gym_testkit.tiny import write_model

USERS = [f"user{number}" for number in range(ALONE + 2)]
ASK, PATIENCE = "What do I like?", 20  #: seconds


@pytest.fixture
def store(tmp_path: Path) -> Iterator[VariantStore]:
    with VariantStore(tmp_path / "store") as made:
        for seed, user in enumerate(USERS):
            made.create(user, Artifact(write_model(tmp_path / user, seed=seed), "model"))
        yield made


def test_threads_that_ask_at_once_get_one_model_and_one_tokenizer(
    store: VariantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, together, read = OpenedVariants(store, torch.float32, 2**20, 2**20, None), Barrier(4), []
    open_artifact = opened_variants.open_artifact

    def counted(*given: Any) -> Any:
        read.append(given)
        return open_artifact(*given)

    monkeypatch.setattr(opened_variants, "open_artifact", counted)

    def ask(user: str) -> Ready:
        together.wait(PATIENCE)
        with ExitStack() as stack:
            return opened.ready(user, stack)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(ask, USERS[:1] * 4))
        several = list(pool.map(ask, USERS[:2] * 4))
    opened.close()
    assert len({id(each.model) for each in found}) == len({id(each.tokenizer) for each in found}) == 1
    assert len({id(each.model) for each in several}) == len(read) == 2


def test_the_files_of_a_tokenizer_stay_as_long_as_it_does(store: VariantStore) -> None:
    opened = OpenedVariants(store, torch.float32, 2**20, 2**20, None)
    with ExitStack() as stack:
        tokenizer = opened.ready(USERS[0], stack).tokenizer
    path = tokenizer.path
    opened.close()
    assert (path / "tokenizer.json").is_file()
    del opened, tokenizer
    gc.collect()
    assert not path.exists()


def test_models_that_are_not_kept_open_leave_the_memory(store: VariantStore) -> None:
    opened, models = [], []
    ready = OpenedVariants.ready

    class Noted(OpenedVariants):
        def ready(self, user: str, stack: ExitStack) -> Ready:
            found = ready(self, user, stack)
            models.append(weakref.ref(found.model))
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "OpenedVariants", Noted)
        engine = ServingEngine(store)
    for user in USERS:
        opened.append(engine.submit(user, ASK, max_new_tokens=2).result(PATIENCE))
    gc.collect()
    assert [each() is not None for each in models] == [False] * 2 + [True] * ALONE
    engine.close()


@pytest.mark.parametrize("where", ["decode", "cache_support_of"])
def test_what_goes_wrong_around_an_answer_is_told_to_who_asked(
    store: VariantStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def failing(*given: Any) -> Any:
        raise MemoryError

    engine = ServingEngine(store)
    with monkeypatch.context() as patch:
        patch.setattr(*((Tokenizer, where) if where == "decode" else (lanes, where)), failing)
        assert isinstance(engine.submit(USERS[0], ASK, max_new_tokens=2).exception(PATIENCE), MemoryError)
    assert isinstance(engine.submit(USERS[0], ASK, max_new_tokens=2).result(PATIENCE), str)
    engine.close()
