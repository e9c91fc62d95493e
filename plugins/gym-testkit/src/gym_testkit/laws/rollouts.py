"""Laws of rollout engines, asked with the tiny model: an answer for each prompt, sampled from the weights as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from gym_core.errors import GymError
from gym_core.ranks import Ranks
from gym_data.tokenizer import Tokenizer
from gym_rl.rollout_engine import RolloutEngine, RolloutRequest
from gym_rl.rollouts.engine_output_check import check
from gym_testkit.bench import Bench
from gym_testkit.distribution import Brought
from gym_testkit.law import laws_of
from gym_torch.generation.generator import stop_ids
from gym_torch.generation.row import Completion
from gym_torch.generation.stop_strings import StopStrings
from gym_torch.model.adapted import Full

laws = laws_of("rollouts", "rollout")

LONGEST = 12
PROMPTS = [[5, 9, 17], [30], [5, 9, 17], [40, 41, 42, 43, 44, 45, 46], [30, 31]]


@dataclass(frozen=True)
class _Trial:
    """An engine under test and the model it answers for."""

    engine: RolloutEngine
    model: PreTrainedModel
    tokenizer: Tokenizer

    def ask(
        self, prompts: Sequence[Sequence[int]] = PROMPTS, temperature: float = 1.0, **more: Any
    ) -> list[Completion]:
        """Return answers that hold to what every engine promises."""
        made = self.engine.generate(RolloutRequest(prompts, LONGEST, temperature, **more))
        check(made, [str(number) for number in range(len(prompts))], LONGEST)
        return made

    @torch.no_grad()
    def scores(
        self,
        prompt: Sequence[int],
        answer: Completion,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
    ) -> Tensor:
        """Return the log-probabilities `[tokens, vocabulary]` that the model itself gives where each token was chosen."""
        logits = self.model(input_ids=torch.tensor([[*prompt, *answer.tokens[:-1]]])).logits[0, len(prompt) - 1 :]
        logits = logits.double() / temperature
        for row in logits:
            ranked = row.softmax(-1).sort(descending=True)
            for place, token in enumerate(ranked.indices.tolist()):
                if (top_k and place >= top_k) or ranked.values[place] < min_p * ranked.values[0]:
                    row[token] = -torch.inf
            left, total = row.softmax(-1), 0.0
            for token in ranked.indices.tolist() if top_p < 1.0 else ():
                if total >= top_p:
                    row[token] = -torch.inf
                total += float(left[token])
        return logits.log_softmax(-1)

    def apart(self, prompt: Sequence[int], answer: Completion, temperature: float = 1.0, **cut: Any) -> float:
        """Return the largest difference between the log-probabilities of an answer and the model's own."""
        own = self.scores(prompt, answer, temperature, **cut).gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        return float((own - torch.tensor(answer.log_probs)).abs().max())

    @property
    def rounding(self) -> float:
        """What may lie between the engine's log-probabilities and the model's."""
        return 1e-3 if self.engine.exact else 0.25


@contextmanager
def _trial(brought: Brought, bench: Bench) -> Iterator[_Trial]:
    path, output = bench.model(), bench.root / "run"
    output.mkdir(exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    tokenizer = Tokenizer(path)
    context = {
        "tokenizer": tokenizer,
        "path": path,
        "precision": "fp32",
        "output": output,
        "ranks": Ranks(),
        "routers": None,
    }
    engine = cast(RolloutEngine, brought.sample().build(adapted=Full(None, model), **context))
    try:
        engine.refresh()
        yield _Trial(engine, model, tokenizer)
    finally:
        engine.close()


@laws("an answer for each prompt, in their order")
def each(brought: Brought, bench: Bench) -> None:
    """Asked one by one or in another order, the prompts get the same answers; no prompts, no answers."""
    with _trial(brought, bench) as trial:
        there = trial.ask(temperature=0.0)
        assert [trial.ask([prompt], temperature=0.0)[0].tokens for prompt in PROMPTS] == [one.tokens for one in there]
        back = trial.ask(PROMPTS[::-1], temperature=0.0)
        assert [answer.tokens for answer in back[::-1]] == [answer.tokens for answer in there]
        assert trial.ask([]) == []


@laws("an answer ends at a token that ends a turn, or at the limit")
def ends(brought: Brought, bench: Bench) -> None:
    """The token that ended it is part of the answer, and nothing stands behind it."""
    with _trial(brought, bench) as trial:
        stop = stop_ids(trial.model, trial.tokenizer)
        for answer in trial.ask([[30]] * 64, temperature=2.0):
            assert not stop & {*answer.tokens[:-1]}, "tokens behind the one that ends a turn"
            assert answer.finished == (answer.tokens[-1] in stop), (
                "`finished` does not say whether such a token ended it"
            )
            assert answer.finished or len(answer.tokens) == LONGEST, "ended before the limit, by nothing"


@laws("a stop string ends an answer, or is refused")
def stops(brought: Brought, bench: Bench) -> None:
    """An answer is what it is without stop strings, up to the first token whose text makes one whole, which is part of it."""
    with _trial(brought, bench) as trial:
        asked: dict[str, Any] = {"prompts": [[30 + number] for number in range(16)], "temperature": 2.0}
        ended, decode = stop_ids(trial.model, trial.tokenizer), trial.tokenizer.decode
        whole = [answer.tokens for answer in trial.ask(**asked)]
        texts = [decode(tokens) for tokens in whole if not ended & {*tokens}]
        pairs = {text[at : at + 2] for text in texts for at in range(len(text) - 1)}
        tried = sorted(pair for pair in pairs if "\ufffd" not in pair)[::9][:6]
        assert tried, "nothing that it says is text"
        for stop in tried:
            try:
                made = trial.engine.generate(RolloutRequest(asked["prompts"], LONGEST, 2.0, stop=("never said", stop)))
            except GymError as refused:
                assert "stop" in str(refused), f"refuses stop strings, and does not say so: {refused}"
                return
            check(made, [str(number) for number in range(len(whole))], LONGEST, stop=StopStrings((stop,), decode))
            for tokens, answer in zip(whole, made, strict=True):
                holds = [count for count in range(1, len(tokens) + 1) if stop in decode(tokens[:count])]
                assert answer.tokens == tokens[: next(iter(holds), LONGEST)], f"{stop!r} changes what stands before it"
                own = bool(holds) and answer.tokens[-1] not in ended
                assert answer.stop == (stop if own else None), f"says that {answer.stop!r} ended it, and {stop!r} did"
                assert answer.finished == (own or answer.tokens[-1] in ended)


@laws("log-probabilities are those of the model")
def truthful(brought: Brought, bench: Bench) -> None:
    """Of the distribution that is drawn from: at the temperature asked for, over what `min_p`, `top_k` and `top_p` leave.

    At temperature 0 of the one at 1.
    """
    with _trial(brought, bench) as trial:
        cuts: tuple[tuple[float, float, dict[str, Any]], ...] = (
            (1.0, 1.0, {}),
            (0.7, 0.7, {}),
            (0.0, 1.0, {}),
            (1.0, 1.0, {"top_p": 0.6}),
            (0.7, 0.7, {"top_p": 0.9}),
            (1.0, 1.0, {"top_k": 5}),
            (0.7, 0.7, {"min_p": 0.3}),
            (1.0, 1.0, {"top_k": 9, "min_p": 0.2, "top_p": 0.8}),
        )
        for asked, scored, cut in cuts:
            for prompt, answer in zip(PROMPTS, trial.ask(temperature=asked, **cut), strict=True):
                apart = trial.apart(prompt, answer, scored, **cut)
                told = "".join(f", {name} {value}" for name, value in cut.items())
                assert apart <= trial.rounding, f"{apart:.2g} from the model's own at temperature {asked}{told}"


@laws("temperature 0 takes the likeliest token")
def greedy(brought: Brought, bench: Bench) -> None:
    """So does a temperature near 0."""
    with _trial(brought, bench) as trial:
        for temperature in (0.0, 1e-3):
            for prompt, answer in zip(PROMPTS, trial.ask(temperature=temperature), strict=True):
                scores = trial.scores(prompt, answer)
                lost = scores.max(1).values - scores.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
                assert float(lost.max()) <= trial.rounding, f"took a less likely token at temperature {temperature}"


@laws("a seed and a stream give one answer, whatever is asked beside it")
def reproducible(brought: Brought, bench: Bench) -> None:
    """Asked again the answer is the same, alone too; with another seed or another stream it is another."""
    with _trial(brought, bench) as trial:
        prompts = [[30]] * 6
        first = [answer.tokens for answer in trial.ask(prompts, seed=1)]
        assert [answer.tokens for answer in trial.ask(prompts, seed=1)] == first, "asked twice, it says two things"
        assert len(set(map(tuple, first))) > 1, "one prompt gets one answer, whatever its stream"
        alone = trial.ask([[30], [40, 41]], seed=1, streams=[4, 9])[0].tokens
        assert alone == first[4], "the answer depends on what is asked beside it"
        assert [answer.tokens for answer in trial.ask(prompts, seed=2)] != first, "the seed changes nothing"


@laws("a later turn is answered as if it were the first")
def turns(brought: Brought, bench: Bench) -> None:
    """An engine that is asked to go on from what it answered, with more behind it, says what it says of the whole text."""
    with _trial(brought, bench) as trial:
        texts = [[5 + (3 * place + number) % 200 for place in range(40)] for number in (0, 0, 9)]
        kept: dict[str, Any] = {}
        for turn in range(3):
            there = trial.ask(texts, streams=[turn * 8 + number for number in range(3)], turns=kept)
            alone = trial.ask(texts, streams=[turn * 8 + number for number in range(3)])
            for text, answer, other in zip(texts, there, alone, strict=True):
                apart = trial.apart(text, answer)
                assert apart <= trial.rounding, f"{apart:.2g} from the model's own in turn {turn + 1}"
                assert not trial.engine.exact or answer.tokens == other.tokens, "it says something else"
            texts = [[*text, *answer.tokens, 30, 31, 32] for text, answer in zip(texts, there, strict=True)]


@laws("it answers with the weights of the moment")
def follows(brought: Brought, bench: Bench) -> None:
    """After an update and `refresh`, answers are those of the updated model."""
    with _trial(brought, bench) as trial:
        before = trial.ask(temperature=0.0)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in trial.model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.05)
        trial.engine.refresh()
        after = trial.ask(temperature=0.0)
        assert [answer.log_probs for answer in after] != [answer.log_probs for answer in before]
        for prompt, answer in zip(PROMPTS, after, strict=True):
            assert trial.apart(prompt, answer) <= trial.rounding, "answers with other weights than the model has"
