"""Decoding steps as CUDA graphs: all kernels of a step are launched at once, not one after another from Python.

A graph uses the same addresses and shapes each time. So a step is captured for a number of rows, rounded up to a power of two,
over all columns of the buffers of the cache; which columns a row sees, and which one is written, are tensors. Surplus rows see
only themselves. A step is captured again when the buffers are reallocated: when there is no room for rows that enter, and once in
`GRAIN` tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from gym_torch.attention.segment_attention import NAME
from gym_torch.console import say
from gym_torch.generation.kv_cache import RowCache
from gym_torch.generation.shared_prompts import attends_to_all

GRAIN = 256  #: columns that the buffers grow by
WARM = 2  #: passes before one is captured: kernels are chosen, compiled and tuned in them
CLOSE = {torch.float32: 1e-3}  #: to a plain pass, of the largest logit; others:
ROUNDED = 5e-2
Again = Callable[[], Tensor]


def graphs_for(model: PreTrainedModel) -> Graphs | None:
    """Return the graphs of a model; None where it is not on a CUDA device, or has an attention of its own."""
    known = model.config._attn_implementation in (NAME, "sdpa")
    return Graphs(model, captured) if model.device.type == "cuda" and known and attends_to_all(model) else None


def captured(work: Again) -> Again:
    """Capture a piece of work as a graph and return its replay, whose results are at the same addresses each time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = work()

    def again() -> Tensor:
        graph.replay()
        return out

    return again


class Graphs:
    """Graphs of the steps of one batch. The first is compared with a plain pass; where that differs or fails, none is used."""

    def __init__(self, model: PreTrainedModel, capture: Callable[[Again], Again]) -> None:
        """Begin without graphs; `capture` turns a pass into its replay."""
        self._model, self._capture = model, capture
        self.steps: dict[int, _Step] = {}  #: by rows
        self._buffers: tuple[int, ...] = ()  # addresses that they read
        self.trusted: bool | None = None  #: whether a step was found to be a plain pass; None before the first

    def run(self, tokens: Tensor, lengths: list[int], cache: RowCache, plain: Again) -> Tensor:
        """Return the logits `[rows, vocabulary]` that follow the last token of each row.

        Args:
            tokens: `[rows, 1]`, which are not in the cache yet.
            lengths: tokens of each row with this one.
            cache: gets it.
            plain: does the same without a graph.

        """
        if self.trusted is False:
            return plain()
        rows = 1 << (len(tokens) - 1).bit_length()
        for layer in cache.layers:
            layer.make_room(rows, GRAIN)
        buffers = tuple(part.data_ptr() for layer in cache.layers for part in layer.buffers)
        if buffers != self._buffers:
            self.steps.clear()
            self._buffers = buffers
        if self.trusted is None:
            return self._try(rows, tokens, lengths, cache, plain)
        found = self._step(rows, cache)(tokens, lengths, cache.layers[0].stop)
        for layer in cache.layers:
            layer.take_in()
        return found

    def _step(self, rows: int, cache: RowCache) -> _Step:
        if rows not in self.steps:
            self.steps[rows] = _Step(self._model, cache, rows, self._capture)
        return self.steps[rows]

    def _try(self, rows: int, tokens: Tensor, lengths: list[int], cache: RowCache, plain: Again) -> Tensor:
        """Run the first step with and without a graph, and return the result of the plain pass."""
        try:
            found = self._step(rows, cache)(tokens, lengths, cache.layers[0].stop)
            why = ""
        except Exception as error:  # the code of a family, which may wait for the device in the middle of a pass
            why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:120]}"
        wanted = plain()
        if not why:
            apart = float((found - wanted).abs().max() / wanted.abs().max())
            why = "" if apart <= CLOSE.get(wanted.dtype, ROUNDED) else f"its logits differ by {apart:.2g}"
        self.trusted = not why
        if why:
            self.steps.clear()
            say(f"steps of generation are no CUDA graphs: {why}")
        return wanted


class _Step:
    """A captured pass over one token of each of a number of rows."""

    def __init__(self, model: PreTrainedModel, cache: RowCache, rows: int, capture: Callable[[Again], Again]) -> None:
        """Allocate its inputs; it is captured with the first rows that it gets."""
        device, width = model.device, cache.layers[0].buffers[0].shape[2]
        self._tokens, self._positions, self._starts = torch.zeros(3, rows, 1, dtype=torch.long, device=device)
        self._column = torch.zeros(1, dtype=torch.long, device=device)
        self._again: Again | None = None
        self._capture = capture
        columns = torch.arange(width, device=device)
        fixed = Cache(layers=[_Fixed(layer.buffers, rows, self._column) for layer in cache.layers])
        autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)

        def work() -> Tensor:
            seen = (columns >= self._starts) & (columns <= self._column)
            # What autocast keeps of weights is gone before the graph is: it casts within.
            with torch.autocast(device.type, autocast[1], enabled=autocast[0], cache_enabled=False):
                output = model(
                    input_ids=self._tokens,
                    attention_mask=seen[:, None, None],
                    position_ids=self._positions,
                    past_key_values=fixed,
                    use_cache=True,
                    logits_to_keep=1,
                )
            logits: Tensor = output.logits[:, -1]
            return logits

        self._work = work

    def __call__(self, tokens: Tensor, lengths: list[int], column: int) -> Tensor:
        """Write a column of the buffers and return the logits `[rows, vocabulary]`."""
        count, known = len(tokens), torch.tensor(lengths, device=tokens.device)[:, None]
        self._tokens[:count] = tokens
        self._positions.zero_()[:count] = known - 1
        self._starts.fill_(column)[:count] = column + 1 - known
        self._column.fill_(column)
        if self._again is None:
            self._again = self._capture(self._work)
        return self._again()[:count].clone()


class _Fixed(DynamicLayer):
    """A layer of a cache whose buffers are used whole: a pass writes to one column of them."""

    def __init__(self, buffers: tuple[Tensor, Tensor], rows: int, column: Tensor) -> None:
        """Take the first rows of buffers `[rows, heads, columns, head_dim]`, and the number of the column `[1]`."""
        super().__init__()
        self.lazy_initialization(*buffers)
        self.keys, self.values = (part[:rows] for part in buffers)
        self._column = column

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the column and return all of them."""
        self.keys.index_copy_(2, self._column, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self._column, value_states.to(self.values.dtype))
        return self.keys, self.values
