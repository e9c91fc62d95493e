"""NEFTune (arXiv:2310.05914): noise on the embeddings of what is trained on.

The noise of a sample follows from the seed, the step, its name and its length alone: not from what is beside it in a batch,
padding, micro-batches, processes, or where an earlier process stopped. Samples of one name in one step share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gym_torch.batch import Batch
from gym_torch.model.loading import LoadedModel


class Noise:
    """Adds U(-1, 1) * alpha / sqrt(tokens * dim) to the embeddings of each sample of a batch."""

    def __init__(self, embedding: nn.Module, alpha: float, seed: int, step: Callable[[], int]) -> None:
        """Take the layer that embeds tokens, the seed of the run, and what says how many steps are done."""
        self.embedding, self.alpha, self.seed, self.step = embedding, alpha, seed, step

    @classmethod
    def of(cls, model: PreTrainedModel, loaded: LoadedModel, seed: int, step: Callable[[], int]) -> Noise | None:
        """Return the noise that a model was loaded to be trained with, over its embeddings as they are now; None without."""
        alpha = loaded.neftune_noise_alpha
        return cls(model.get_input_embeddings(), alpha, seed, step) if alpha else None

    @contextmanager
    def on(self, batch: Batch) -> Iterator[None]:
        """Have a forward pass over a batch see its noise."""

        def add(_module: nn.Module, _inputs: Any, embedded: Tensor) -> Tensor:
            return embedded + self.drawn(batch, embedded)

        hook = self.embedding.register_forward_hook(add)  # after those of an adapter, which put rows of their own in
        try:
            yield
        finally:
            hook.remove()

    @torch.no_grad()
    def drawn(self, batch: Batch, embedded: Tensor) -> Tensor:
        """Return the noise of a batch, like `embedded`, [rows, length, dim]; padding has none.

        `tokens` are those of the sample, up to the end of the segment where segments continue one another.
        """
        noise = torch.zeros_like(embedded)
        parts: list[Tensor] = []
        ends: list[int] = []  # tokens up to the end of each segment, those that it continues included
        for segment in batch.segments:
            before = 0 if segment.prefix is None else ends[segment.prefix]
            ends.append(before + len(segment))
            name = f"{self.seed}/{self.step()}/{segment.id}/{before}"
            parts.append(self._uniform(name, len(segment), ends[-1], embedded))
            place: int | None = len(parts) - 1
            while place is not None:  # in padded rows what several continue stands in the row of each
                above = batch.segments[place]
                noise[segment.row, above.start : above.stop] = parts[place]
                place = above.prefix
        return noise

    def _uniform(self, name: str, rows: int, tokens: int, like: Tensor) -> Tensor:
        """Return the noise of a segment, [rows, dim] in fp32."""
        generator = torch.Generator(like.device)
        generator.manual_seed(int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1)
        drawn = torch.rand(rows, like.shape[-1], generator=generator, device=like.device)
        return (2 * drawn - 1) * (self.alpha / (tokens * like.shape[-1]) ** 0.5)
