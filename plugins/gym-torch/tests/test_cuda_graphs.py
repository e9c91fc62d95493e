"""Decoding with steps done again at the same addresses and shapes, as by a CUDA graph, says what it says without."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from gym_torch_decoding import PROMPTS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from gym_testkit.architectures import ready
from gym_torch.attention import cached_attention
from gym_torch.generation import cuda_graphs, passes
from gym_torch.generation.cache_support import CacheSupport
from gym_torch.generation.cuda_graphs import Graphs, captured, graphs_for
from gym_torch.generation.decoding import Decoding
from gym_torch.generation.generator import Generator
from gym_torch.generation.row import Row
from gym_torch.generation.sampling import SamplingOptions
from gym_torch.kernels import few_row_products, fused_modules


class Recorded(TorchDispatchMode):
    """A graph on a CPU: the operations of a pass with their tensors, done again on these, and nothing of Python in between."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number is read, for which a graph cannot wait"
        out = func(*args, **(kwargs or {}))
        self.done.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.done:
            again = func(*args, **kwargs)
            for held, new in zip(tree_flatten(out)[0], tree_flatten(again)[0], strict=True):
                if isinstance(held, Tensor) and held.data_ptr() != new.data_ptr():
                    held.copy_(new)


def as_graph(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Capture on a CPU; warming up comes before, as on a GPU."""
    work()
    with Recorded() as graph:
        out = work()

    def again() -> Tensor:
        graph.replay()
        return out

    return again


@pytest.fixture
def graphs(monkeypatch) -> list[Graphs]:
    """Decoding makes graphs of its steps; returns those that it made."""
    made: list[Graphs] = []

    def made_for(model: Any) -> Graphs:
        made.append(Graphs(model, as_graph))
        return made[-1]

    monkeypatch.setattr(passes, "graphs_for", made_for)
    monkeypatch.setattr(cuda_graphs, "GRAIN", 8)
    for module in (fused_modules, few_row_products, cached_attention):  # kernels in C, which are no operations of torch
        monkeypatch.setattr(module.CHOICES, "always", False)
    return made


def rows() -> list[Row]:
    options = [SamplingOptions(), SamplingOptions(0.7, 0.8, seed=5), SamplingOptions(1.0, seed=9)]
    return [Row(tuple(prompt), 4 + n % 9, (), options[n % 3], stream=n) for n, prompt in enumerate(PROMPTS * 2)]


def said(given: list[Row], family: str, drops: bool = False, **how: Any) -> list[tuple[list[int], list[float]]]:
    """Rows enter in threes while others are decoded; some are dropped."""
    batch, waiting = Decoding(ready(family), CacheSupport(True), 64, **how), list(given)
    while waiting or batch.rows:
        entering, waiting = waiting[:3], waiting[3:]
        if entering:
            batch.admit(entering)
        batch.step()
        if drops and len(batch.rows) > 4:
            batch.drop(batch.rows[1:2])
    return [(row.completion.tokens, row.completion.log_probs) for row in given]


@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_rows_come_and_go_and_say_the_same(graphs, monkeypatch, family, drops):
    found = said(rows(), family, drops)
    assert graphs[0].trusted and set(graphs[0].steps) & {1, 2, 4, 8, 16}
    monkeypatch.setattr(passes, "graphs_for", lambda model: None)
    for (tokens, scores), (expected, exact) in zip(found, said(rows(), family, drops), strict=True):
        assert tokens == expected and scores == pytest.approx(exact, abs=1e-4)


def test_a_generator_uses_them_in_the_precision_of_autocast(graphs, monkeypatch):
    def made() -> list[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            return Generator(ready("qwen3"), None, support=CacheSupport(True)).generate(PROMPTS, 12, stop_ids=())

    found = made()
    assert graphs[0].trusted and graphs[0].steps
    monkeypatch.setattr(passes, "graphs_for", lambda model: None)
    first = [(one.log_probs[1], other.log_probs[1]) for one, other in zip(found, made(), strict=True)]
    assert all(one == pytest.approx(other, abs=0.1) for one, other in first)


def test_a_model_that_cannot_be_captured_or_differs_is_decoded_as_before(graphs, monkeypatch, capsys):
    plain = said(rows(), "qwen3")

    def waits(work: Any) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    def wrong(work: Any) -> Any:
        return lambda: work().flip(0)

    for capture, why in ((waits, "not permitted"), (wrong, "differ by")):
        monkeypatch.setattr(passes, "graphs_for", lambda model, capture=capture: Graphs(model, capture))
        for (tokens, scores), (expected, exact) in zip(said(rows(), "qwen3"), plain, strict=True):
            assert tokens == expected and scores == pytest.approx(exact, abs=1e-4)
        told = capsys.readouterr().err
        assert told.count("no CUDA graphs") == 1 and why in told


def test_what_a_graph_cannot_see_is_computed_without(graphs, monkeypatch):
    """What is around a pass, such as a tenant's adapter; on a CPU, and with windows, there are none at all."""
    said(rows()[:3], "qwen3", around=lambda keys: nullcontext())
    assert not graphs
    assert graphs_for(ready("qwen3")) is None
    monkeypatch.setattr(type(ready("qwen3")), "device", torch.device("cuda"))
    assert graphs_for(ready("qwen3")) is not None
    monkeypatch.setattr(ready("qwen3").config, "sliding_window", 8)
    assert graphs_for(ready("qwen3")) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_says_the_same_with_graphs_and_without(monkeypatch, dtype):
    model = ready("qwen3").to("cuda", dtype)
    made: list[Graphs] = []
    monkeypatch.setattr(passes, "graphs_for", lambda model: made.append(Graphs(model, captured)) or made[-1])
    found = Generator(model, None, support=CacheSupport(True)).generate(PROMPTS, 24, stop_ids=())
    assert made[0].trusted and made[0].steps
    monkeypatch.setattr(passes, "graphs_for", lambda model: None)
    plain = Generator(model, None, support=CacheSupport(True)).generate(PROMPTS, 24, stop_ids=())
    for one, other in zip(found, plain, strict=True):
        assert one.log_probs[1] == pytest.approx(other.log_probs[1], abs=1e-3 if dtype == torch.float32 else 0.1)
    if dtype == torch.float32:
        assert [each.tokens for each in found] == [each.tokens for each in plain]
