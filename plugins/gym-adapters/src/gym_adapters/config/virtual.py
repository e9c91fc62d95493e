"""Virtual tokens: what is trained stands before every text, and the model itself is left alone."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from gym_core import Adapter


class VirtualTokens(Adapter):
    """Base of what trains virtual tokens, which no weight of a model can compute."""

    starts_unchanged: ClassVar[bool] = False
    merges: ClassVar[bool] = False

    tokens: Annotated[PositiveInt, Field(examples=[4])] = 20
    """Number of virtual tokens."""


class PromptTuning(VirtualTokens):
    """Trains the embeddings of a few virtual tokens that stand before every text. Cannot be merged.

        k_1..n, v_1..n = keys and values that the model computes for P alone, in each layer
        token t attends to [k_1..n; its own keys up to t], [v_1..n; its own values up to t]
        position of token t of a text = n + t     t from 0

    P `[n, hidden]`, n = `tokens`, trains; the model stays as it is. P begins as the embeddings of tokens drawn from the
    vocabulary, or those of `text`, repeated or cut. What P becomes in a layer depends on no text, so it is computed once a
    pass, and without gradients once for many passes.

    Trains: `tokens hidden` numbers, once for the model.

    Code: ours: peft puts them into the inputs of single rows; here attention adds them, so they work in packed rows, behind
    shared prompts and in the generator, and count towards no `batch_tokens`.

    Differs: the paper draws from the most common tokens, here all are drawn from.

    On the disk: P by peft's name, which peft loads and computes the same with. Left out, it leaves the base to the bit. It
    begins as something, so a reference has its first values: scores from before training, or a second model.

    Not with: merging, for no weight computes that; models with sliding windows, in which the virtual tokens would drop out of
    sight, or that attend in a way of their own.

    Proof: peft computes the same from the files (`test_it_computes_what_peft_does`); packed is unpacked, with shared prompts
    too (`test_packed_is_unpacked`); decoded in a batch it is a plain pass for each token
    (`test_decoding_in_a_batch_is_a_plain_pass_for_each_token`); nothing but P trains
    (`test_only_the_virtual_tokens_train_and_they_learn`); models with windows are refused
    (`test_a_model_with_windows_is_refused`).
    """

    target: ClassVar[str] = "gym_adapters.virtual:Prompt"

    text: str | None = None
    """Text whose tokens the virtual ones begin as, repeated or cut; without it, tokens drawn from the vocabulary."""


class PrefixTuning(VirtualTokens):
    """Trains keys and values that every token attends to, in every layer, before its own text. Cannot be merged.

        token t attends to [K; its own keys up to t], [V; its own values up to t]          in each layer
        position of token t of a text = n + t     t from 0

    K and V `[n, kv_heads, head_dim]` of each layer, n = `tokens`, train; the model stays as it is. They begin as the keys and
    values that the model computes for n tokens drawn from its vocabulary, or as normal noise.

    Trains: `2 tokens kv_heads head_dim` numbers for each layer.

    Code: ours: peft puts them into the cache of single rows; here attention adds them, so they work in packed rows, behind
    shared prompts and in the generator, and count towards no `batch_tokens`.

    Differs: the paper trains them through a network that is thrown away afterwards; here they train by themselves. K is as in a
    cache: turned to its positions already.

    On the disk: all of them in one matrix by peft's name, which peft loads and computes the same with. Left out, it leaves the
    base to the bit. It begins as something, so a reference has its first values: scores from before training, or a second model.

    Not with: merging, for no weight computes that; models with sliding windows, in which the virtual tokens would drop out of
    sight, or that attend in a way of their own.

    Proof: they begin as what the model computes (`test_prefixes_begin_as_what_the_model_computes`); peft computes the same from
    the files (`test_it_computes_what_peft_does`); packed is unpacked, with shared prompts too (`test_packed_is_unpacked`);
    decoded in a batch it is a plain pass for each token (`test_decoding_in_a_batch_is_a_plain_pass_for_each_token`); models
    with windows are refused (`test_a_model_with_windows_is_refused`).
    """

    target: ClassVar[str] = "gym_adapters.virtual:Prefix"

    init: Literal["words", "random"] = "words"
    """First values: what the model computes for tokens drawn from its vocabulary (as the paper advises), or normal noise."""
