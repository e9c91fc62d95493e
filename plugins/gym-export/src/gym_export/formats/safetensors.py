"""The format `safetensors`: a plain model directory, which transformers and everything that reads its files loads.

Neither the source nor what is written is ever in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import Artifact, GymError
from gym_export.format import Format, Loaded, Logits
from gym_export.source import Prompt, Source, read_tokenizer, render, rows
from gym_torch.checkpoints import weight_shards
from gym_torch.checkpoints.pooling_files import copy_pooling
from gym_torch.model import mapped_weights
from gym_torch.model.adapted import skeleton
from gym_torch.model.stored_precisions import stored_exceptions
from gym_torch.model.tasks import ROUNDING, Task, answers, built
from gym_torch.model_files import weight_files
from gym_torch.recorded_components import passed_on

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Safetensors(Format):
    """Merges and writes; plain transformers loads it again."""

    def bound(self, source: Source) -> float:
        """Return what the precision rounds."""
        return ROUNDING[self._dtype(source)]

    def size(self, source: Source) -> int:
        """Return the bytes of the weights."""
        return source.numbers * self._dtype(source).itemsize

    def write(self, source: Source, into: Path) -> Mapping[str, Any]:
        """Write configuration, weights, tokenizer and card; return a hash of each weight."""
        whole, dtype = source.whole, self._dtype(source)
        plain = source.merged(dtype)
        model = whole.adapted.model
        empty = skeleton(plain.config, built(plain.config, whole.task)).to(dtype)
        if self.config.dtype == "keep":
            own = stored_exceptions(empty, source.artifact, source.base, dtype)
            if model.dtype == dtype != torch.float32:  # what a family never rounds
                wide = (name for name, weight in model.state_dict().items() if weight.dtype == torch.float32)
                own = dict.fromkeys(wide, torch.float32) | own
            for name, weight in empty.state_dict(keep_vars=True).items():
                weight.data = weight.data.to(own.get(name, weight.dtype))
        config = plain.config
        config.dtype, config.architectures = str(dtype).removeprefix("torch."), [type(empty).__name__]
        config.save_pretrained(into)
        if empty.can_generate() and model.generation_config is not None:
            model.generation_config.save_pretrained(into)
        lm_head = model.get_output_embeddings()
        spare = [
            f"{path}.{part}"
            for path, module in model.named_modules()
            if module is lm_head and whole.head is not None
            for part in ("weight", "bias")
        ]
        with torch.no_grad():
            most = int(self.config.shard_gigabytes * 1e9)
            fitting = _fitting(plain.weights, dtype, str(source.artifact.path))
            digests = weight_shards.write(empty, fitting, into, most, spare)
        source.carry_tokenizer(into)
        copy_pooling(source.artifact.path, into)
        source.carry_card(into)
        if kept := passed_on(source.artifact):
            Artifact(into, details=kept, task=source.artifact.task).record()
        return {"digests": digests, "dtype": str(dtype).removeprefix("torch.")}

    def weights(self, source: Source, path: Path, told: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compare every weight with what was to be written, bit for bit."""
        if not told:
            return {}
        dtype, digests = getattr(torch, told["dtype"]), told["digests"]
        again = mapped_weights.load(path, kind=source.task.kind, exact=True)
        for name, weight in weight_shards.own_weights(again).items():
            if digests.get(name) not in (weight_shards.digest(weight), weight_shards.digest(weight.to(dtype))):
                raise GymError(f"{name} does not read back as it was written", where=str(path), fix="check the disk")
        return {"dtype": told["dtype"], "weights": len(digests)}

    def load(self, source: Source, path: Path) -> Loaded:
        """Load it with plain transformers."""
        return Reloaded(path, source.task)

    def arrays(self, path: Path) -> Mapping[str, Any]:
        """Return the weights by name, as the files have them but for their precision."""
        found: dict[str, Any] = {}
        for file in weight_files(path):
            with safe_open(file, "pt") as weights:
                found |= {name: weights.get_tensor(name).float().numpy() for name in weights.keys()}  # noqa: SIM118
        return found

    def _dtype(self, source: Source) -> torch.dtype:
        return DTYPES.get(self.config.dtype) or source.dtype


class Reloaded(Loaded):
    """An export in plain transformers, mapped, with its tokenizer."""

    def __init__(self, path: Path, task: Task) -> None:
        """Load both."""
        self.model: PreTrainedModel = mapped_weights.load(path, kind=task.kind)
        self.task, self.tokenizer = task, read_tokenizer(path, path)

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Return what it answers, computed in fp32."""
        return rows(answers(self.task.asked, self.model, torch.tensor([list(tokens)])))

    def encode(self, prompt: Prompt) -> list[int] | None:
        """Return a prompt as its tokenizer and template have it."""
        return encoded(self.tokenizer, prompt)


def _fitting(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, where: str) -> Iterator[tuple[str, Tensor]]:
    """Yield weights. Raises GymError where one has numbers that fp16 cannot hold."""
    end = torch.finfo(torch.float16).max
    for name, weight in weights:
        if dtype == torch.float16 and weight.dtype != dtype:
            largest = max(abs(float(bound)) for bound in weight.detach().aminmax())
            if largest > end:
                why = f"{name} has numbers up to {largest:.3g}, and fp16 ends at {end:.0f}"
                raise GymError(why, where=where, key="export.dtype", fix="export with dtype=bf16 or dtype=fp32")
        yield name, weight


def encoded(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Return a prompt as a tokenizer of transformers and its template have it; none of it without a tokenizer."""
    if tokenizer is None:
        return []
    text = render(tokenizer, prompt.messages) if prompt.messages else prompt.text
    found: list[int] = tokenizer(text or "", add_special_tokens=False)["input_ids"]
    return found
