"""Numbers for whole texts: scores of reward models, and embeddings from the states of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gym_core import DataError
from gym_data.tokenizer import Tokenizer
from gym_data.tokenizer_files import tokens_around
from gym_serve.batching.bounds import check_tokens
from gym_serve.contract import ScoreInput, Text
from gym_serve.errors import BadRequest, TooLong
from gym_serve.local.opening import Served
from gym_serve.local.tenants import Answering, Tenants
from gym_torch.batch import Piece
from gym_torch.generation.sampling import Scores, scores_of
from gym_torch.model.hidden_states import hidden_states
from gym_torch.model.layout_support import miniature_support
from gym_torch.model.log_probs import head_of

TOGETHER = 16  #: texts in one pass


def scores(served: Served, inputs: Sequence[ScoreInput]) -> list[float]:
    """Return the score of each input at the token that ends it, as a reward model is trained. Raises BadRequest, TooLong."""
    assert served.head is not None
    texts = [_scored(each, served.tokenizer) for each in inputs]
    found: list[float] = []
    for start in range(0, len(texts), TOGETHER):
        states = _last(served.model, served.context, texts[start : start + TOGETHER])
        found += served.head(states).tolist()
    return found


def embeddings(
    answering: Answering, tenants: Tenants, texts: Sequence[Text], dimensions: int | None
) -> list[list[float]]:
    """Return a state for each text, cut to so many dimensions and brought to length 1. Raises BadRequest, TooLong.

    It is the last one; of an embedding model it is pooled as that was trained, of the tokens that its tokenizer makes when it
    is called.
    """
    width = answering.model.config.get_text_config().hidden_size
    if dimensions is not None and not 0 < dimensions <= width:
        raise BadRequest(f"there are {width} dimensions", key="dimensions")
    words = answering.tokenizer
    before, behind = (words.document_start, []) if answering.pooling is None else tokens_around(words.path)
    tokens = [[*before, *words.encode(text), *behind] if isinstance(text, str) else list(text) for text in texts]
    if not all(tokens):
        raise BadRequest("a text has no tokens", key="input")
    for row in tokens:
        check_tokens(row, answering.vocabulary, "input")
    found: list[list[float]] = []
    for row in tokens:  # one at a time, for a pass of a tenant may not be packed
        with tenants.around([answering.key]) if answering.key is not None else nullcontext():
            states = _last(answering.model, answering.context, [row], answering.pooling == "mean")
        states = states.float().mean(0, keepdim=True)[:, :dimensions]
        found += torch.nn.functional.normalize(states, dim=-1).tolist()
    return found


@torch.no_grad()
def prompt_scores(answering: Answering, tenants: Tenants, tokens: Sequence[int], count: int) -> list[Scores]:
    """Return how likely each token of a prompt but the first was, and the `count` likeliest in its place."""
    if len(tokens) < 2:
        return []
    head = head_of(answering.model)
    with tenants.around([answering.key]) if answering.key is not None else nullcontext():
        states = _states(answering.model, answering.context, [tokens], whole=True)
        return [scores_of(head(states[at : at + 1])[0], token, count) for at, token in enumerate(tokens[1:])]


@torch.no_grad()
def _last(model: PreTrainedModel, context: int, texts: Sequence[Sequence[int]], whole: bool = False) -> Tensor:
    """Return the last states `[texts, width]`, or those of all tokens."""
    longest = max(map(len, texts))
    if longest > context:
        raise TooLong(f"a text is too long: it has {longest} tokens, and may have {context}", key="input")
    return _states(model, context, texts, whole)


def _states(model: PreTrainedModel, context: int, texts: Sequence[Sequence[int]], whole: bool = False) -> Tensor:
    """Return the last states of texts `[texts, width]`, or those of all of their tokens, one text after another."""
    none = np.zeros(max(map(len, texts)), dtype=np.bool_)
    pieces = [Piece("text", np.array(text, dtype=np.int32), none[: len(text)]) for text in texts]
    layout = miniature_support(model, context, packs=False).layout
    batch = layout.lay_out(pieces, ()).to(model.device)
    places = batch.places([range(-len(text), 0) for text in texts]) if whole else batch.ends
    return hidden_states(model, batch, places)


def _scored(given: ScoreInput, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of an input, up to the one that ends it."""
    if isinstance(given, str):
        found = [*tokenizer.document_start, *tokenizer.encode(given)]
    else:
        messages = _messages(given)
        try:
            rendered = tokenizer.learnable(messages, (), [len(messages) - 1])
            tokens, trained = tokenizer.encode_rendered(rendered)[-1]
        except (ValueError, DataError) as error:
            raise BadRequest(str(error).splitlines()[0][:300], key="messages") from error
        found = tokens[: int(np.flatnonzero(trained)[-1]) + 1].tolist()
    if not found:
        raise BadRequest("a text has no tokens", key="input")
    return found


def _messages(given: tuple[str, str] | Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    match given:
        case (str() as question, str() as answer):
            return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        case _:
            messages = [dict(each) for each in given if isinstance(each, Mapping)]
            if not messages or messages[-1].get("role") != "assistant":
                raise BadRequest("a conversation that is scored ends with the assistant", key="messages")
            return messages
