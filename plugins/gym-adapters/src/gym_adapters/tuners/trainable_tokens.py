"""Rows of embeddings and head train for some tokens alone: a new vocabulary, or what a model has not learnt well.

Ours and not peft's, which lets the head of an untied model alone, so that new tokens are read and never written, and copies
the whole embedding matrix for each pass through a layer, for the chunked head once a chunk. What is saved has peft's names.
"""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftConfig, TrainableTokensConfig
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from gym_adapters.config.trainable_tokens import TrainableTokens
from gym_adapters.forward_hook_base import Handle, HookAdapter
from gym_core import GymError
from gym_torch.model.vocabulary import tokens_in

ROWS = "trainable_tokens_delta"  #: what peft calls the rows; they stand in place of those of the base, not beside them


class TrainableTokensAdapter(HookAdapter[TrainableTokens]):
    """New rows in place of those of the base, in the embeddings and in the head, which share them where they are tied.

    Tokens past the weights of the model make embeddings and head grow, by rows that are the mean of the others.
    """

    def add_parameters(self) -> None:
        """Register the rows on the embeddings, and on a head of its own."""
        path = Path(self.model.name_or_path)
        self._ids = ids_of(self.config.tokens, path)
        known, rows = tokens_in(path), _ends(self.model)[0].num_embeddings
        if known and self._ids[-1] >= max(known, rows):
            raise GymError(
                f"there is no token {self._ids[-1]:,}: the tokenizer has {known:,}, and the model embeddings for {rows:,}",
                where=str(path),
                key="adapter.tokens",
                fix="make it one: gym tokens MODEL TOKEN --into DIRECTORY, and name that directory as the model",
            )
        grow(self.model, max(self._ids) + 1)
        self.model.requires_grad_(False)
        embedding, head = _ends(self.model)
        tied = head.weight is embedding.weight
        for layer in [embedding] if tied else [embedding, head]:
            layer.register_parameter(ROWS, nn.Parameter(layer.weight.detach()[[*self._ids]].float()))

    def register_hooks(self) -> list[Handle]:
        """Put the rows in place of what embeddings and head compute for these tokens."""
        embedding, head = _ends(self.model)
        ids = torch.tensor(self._ids, device=embedding.weight.device)
        table = torch.full((embedding.num_embeddings,), -1, device=ids.device)
        table[ids] = torch.arange(len(ids), device=ids.device)
        # Gemma's embeddings are scaled inside
        scale = dict(embedding.named_buffers()).get("embed_scale", torch.ones(()))

        def embed(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            row = table.to(output.device)[args[0]]
            own = nn.functional.embedding(row.clamp(min=0), layer.get_parameter(ROWS)) * scale.to(output.device)
            return torch.where((row >= 0)[..., None], own.to(output.dtype), output)

        def score(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            found = _rows(layer)
            rows = embedding.get_parameter(ROWS) if found is None else found
            own = nn.functional.linear(args[0], rows.to(args[0].dtype))
            if layer.bias is not None:
                own = own + layer.bias[ids]
            return output.index_copy(-1, ids.to(output.device), own.to(output.dtype))

        return [embedding.register_forward_hook(embed), head.register_forward_hook(score)]

    def describe(self) -> str:
        """Return the number of tokens, and where their rows are."""
        ends = "the tied embeddings" if _rows(_ends(self.model)[1]) is None else "embeddings and head"
        return f"{len(self._ids)} tokens in {ends}"

    def peft_config(self) -> PeftConfig:
        """Return peft's options of the same adapter; of tied embeddings it adapts the head by itself."""
        layers = [name for name, layer in self.model.named_modules() if _rows(layer) is not None]
        return TrainableTokensConfig(token_indices=list(self._ids), target_modules=layers, task_type="CAUSAL_LM")

    @torch.no_grad()
    def merge_weight(self, name: str, weight: Tensor) -> Tensor:
        """Put the rows into the embeddings, and into a head of its own; the two stay tied where they were."""
        layer = self.model.get_submodule(name.rpartition(".")[0])
        embedding, head = _ends(self.model)
        rows = _rows(embedding if layer is head and head.weight is embedding.weight else layer)
        if rows is None or not name.endswith(".weight"):
            return weight
        whole = weight.clone()
        whole[[*self._ids]] = rows.to(weight.dtype)
        return whole


def ids_of(tokens: tuple[str | int, ...], path: Path) -> tuple[int, ...]:
    """Return the ids of tokens, each once, ascending. Raises GymError where the tokenizer at `path` has no such token."""
    texts = [token for token in tokens if isinstance(token, str)]
    known = AutoTokenizer.from_pretrained(path, local_files_only=True).get_vocab() if texts else {}
    for text in texts:
        if text not in known:
            raise GymError(
                f"`{text}` is no token of the tokenizer",
                where=str(path),
                key="adapter.tokens",
                fix="make it one: gym tokens MODEL TOKEN --into DIRECTORY, and name that directory as the model",
            )
    return tuple(sorted({known[token] if isinstance(token, str) else token for token in tokens}))


@torch.no_grad()
def grow(model: PreTrainedModel, count: int) -> None:
    """Give embeddings and head at least `count` rows; new ones are the mean of those there were (a bias grows by zeros)."""
    embedding, head = _ends(model)
    old = embedding.num_embeddings
    if count <= old:
        return
    layers = [embedding] if head.weight is embedding.weight else [embedding, head]
    means = [layer.weight.float().mean(0) for layer in layers]
    model.resize_token_embeddings(count, mean_resizing=False)
    for layer, mean in zip(_ends(model), means, strict=False):
        layer.weight[old:] = mean.to(layer.weight.dtype)


def _ends(model: PreTrainedModel) -> tuple[nn.Embedding, nn.Linear]:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert isinstance(embedding, nn.Embedding) and isinstance(head, nn.Linear)
    return embedding, head


def _rows(layer: nn.Module) -> Tensor | None:
    """Return the rows that train of an embedding or a head."""
    return dict(layer.named_parameters(recurse=False)).get(ROWS)
