"""A model of Gym as lm-eval asks one. Texts become tokens as its own `hf` model makes them; the engine computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
    resolve_max_length,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from transformers import AutoTokenizer

from gym_core import DataError, GymError
from gym_eval.language_model import LanguageModel
from gym_eval.log_likelihoods import Continuation
from gym_torch.console import warn

NEW_TOKENS = 256  #: of an answer, where a task does not say how many
NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1}  #: what changes nothing
MARK = "THE ANSWER GOES ON HERE "  #: stands where an answer that was begun is to go on; templates may strip its space
DRAWING = ("temperature", "top_p", "top_k", "min_p")


class GymLM(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """Answers lm-eval's three kinds of request."""

    def __init__(self, model: LanguageModel, max_length: int | None, add_bos_token: bool | None, seed: int) -> None:
        """Take the model; see `gym_eval.harness.config.LmEval` for the options."""
        super().__init__()
        self.asked = model
        given = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
        self.tokenizer = AutoTokenizer.from_pretrained(model.tokenizer.path, **given)
        self._added = {} if add_bos_token is None else {"add_special_tokens": add_bos_token}
        self._seed = seed
        self._without_system = False
        self.max_length = max_length or resolve_max_length(model.model.config, self.tokenizer)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text. Raises GymError where the model names none."""
        found: int | None = self.tokenizer.eos_token_id
        if found is None:
            raise GymError("its tokenizer names no token that ends a text", where=str(self.asked.tokenizer.path))
        return found

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text that nothing stands before."""
        found: int | None = self.tokenizer.bos_token_id
        return self.eot_token_id if found is None else found

    @property
    def tokenizer_name(self) -> str:
        """Name of tokenizer and template."""
        return str(self.asked.tokenizer.path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **further: Any) -> list[int]:
        """Return the tokens of a text."""
        given = dict(self._added)
        if add_special_tokens is not None:
            given["add_special_tokens"] = add_special_tokens
        elif has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            given["add_special_tokens"] = False
        found: list[int] = self.tokenizer.encode(string, **given)
        return found

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return how likely each continuation is, and whether it is the likeliest."""
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return found

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **further: Any
    ) -> list[tuple[float, bool]]:
        asked = [Continuation(context, continuation) for _, context, continuation in requests]
        return [*self.asked.log_likelihoods(asked, self.max_length)]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[float]:
        """Return how likely each text is, in windows of the most tokens that the model may be given."""
        windows: list[tuple[int, Continuation]] = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            parts = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
            windows += [(number, Continuation(*make_disjoint_window(part))) for part in parts]
        found = [0.0] * len(requests)
        scores = self.asked.log_likelihoods([window for _, window in windows], self.max_length)
        for (number, _), score in zip(windows, scores, strict=True):
            found[number] += score.log_prob
        return found

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = True) -> list[str]:
        """Return what the model writes after each text. Raises GymError for options of tasks that are not known here."""
        found: dict[int, str] = {}
        told = sorted(range(len(requests)), key=lambda number: repr(requests[number].args[1]))
        for _, group in groupby(told, key=lambda number: repr(requests[number].args[1])):
            numbers = list(group)
            texts = [requests[number].args[0] for number in numbers]
            found.update(zip(numbers, self._answers(texts, requests[numbers[0]].args[1]), strict=True))
        return [found[number] for number in range(len(requests))]

    def _answers(self, texts: Sequence[str], options: Mapping[str, Any]) -> list[str]:
        """Return what the model writes after texts that one task says the same of."""
        given = normalize_gen_kwargs(dict(options), NEW_TOKENS)
        eos = self.tokenizer.decode(self.eot_token_id, skip_special_tokens=False)
        until = [text for text in handle_stop_sequences(given.pop("until", None), eos=eos) if text]
        new = given.pop("max_gen_toks")
        drawn = given.pop("do_sample")
        draws = {name: given.pop(name) for name in DRAWING if name in given}
        for name, value in given.items():
            if NEUTRAL.get(name) != value:
                fix = "set it for all tasks with `gen_kwargs`, or leave the task out"
                raise GymError(f"a task asks for `{name}={value}`, which is not there", key="gen_kwargs", fix=fix)
        if not drawn:
            draws = {"temperature": 0.0}
        if new >= self.max_length:
            why = f"answers of {new:,} tokens leave no room in the {self.max_length:,} that the model takes"
            raise GymError(why, key="gen_kwargs", fix="ask for shorter ones: `gen_kwargs.max_gen_toks=64`")
        prompts = [self._begun(text)[-(self.max_length - new) :] for text in texts]
        made = self.asked.generate(prompts, new, stop=until, seed=self._seed, **draws)
        said = (self.tokenizer.decode(each.tokens, skip_special_tokens=True) for each in made)
        return [postprocess_generated_text(text, stop=until, think_end_token=None) for text in said]

    def _begun(self, text: str) -> list[int]:
        """Return the tokens of a text that is to go on; one that spells out the token for its beginning gets no second."""
        begins = has_bos_prefix(text, self.tokenizer.bos_token)
        found: list[int] = self.tokenizer.encode(text, **({"add_special_tokens": False} if begins else self._added))
        return found

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation; without `add_generation_prompt` its last message is to be continued.

        Where the template takes no message of the role `system`, that is left out, as lm-eval does.
        """
        if not add_generation_prompt:
            *before, last = chat_history
            chat_history = [*before, {**last, "content": last["content"] + MARK}]
        text = self._rendered(chat_history, add_generation_prompt)
        if add_generation_prompt:
            return text
        begun, found, after = text.rpartition(MARK.rstrip())
        if not found:
            fix = "leave `apply_chat_template` out, or name another template with `template=`"
            raise GymError("its chat template leaves out the beginning of an answer", where=self.asked.name, fix=fix)
        return begun if after.startswith(" ") else begun.rstrip()

    def _rendered(self, messages: Sequence[dict[str, str]], prompt: bool) -> str:
        render = self.asked.tokenizer.render
        try:
            return render(messages, generation_prompt=prompt)
        except ValueError as error:
            rest = [message for message in messages if message["role"] != "system"]
            if len(rest) == len(messages):
                raise DataError(f"its chat template refuses the questions: {error}", where=self.asked.name) from error
            if not self._without_system:
                warn(f"{self.asked.name}: its chat template takes no system message; it is left out, as by lm-eval")
            self._without_system = True
            return self._rendered(rest, prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the template that conversations are rendered by."""
        return self.asked.tokenizer.templates.get("default") if chat_template else None

    def get_model_info(self) -> dict[str, Any]:
        """Return what results say of the model."""
        model = self.asked.model
        return {"model_num_parameters": model.num_parameters(), "model_dtype": str(model.dtype).removeprefix("torch.")}
