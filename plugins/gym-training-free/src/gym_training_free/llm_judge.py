"""A model as a judge: one request for each answer, and the grade on the last line of its reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gym_core.errors import GymError
from gym_rewards.reward import RewardInput
from gym_training_free.endpoint.caller import Caller
from gym_training_free.endpoint.chat import ChatModel, ChatRequest
from gym_training_free.endpoint.journal import Journal
from gym_training_free.endpoint.ledger import CapReached, Ledger
from gym_training_free.endpoint.reward_calls import Account, alone
from gym_training_free.experience.leak_guard import final_answers
from gym_training_free.prompting import Prompts, block, shown

if TYPE_CHECKING:
    from gym_training_free.judge_reward import Judge

BEST = 10  #: the highest grade
_GRADE = re.compile(
    r"^[ \t*_#>]*GRADE[ \t*_]*:[ \t*_]*(\d{1,3}(?:\.\d+)?)(?:[ \t]*/[ \t]*10)?[ \t*_.]*$", re.IGNORECASE | re.MULTILINE
)


class LLMJudge:
    """Grades answers; threads share the model."""

    def __init__(self, config: Judge) -> None:
        """Raise GymError where the model cannot be had, or a cap needs a price that nobody knows."""
        self.config, self.prompts = config, Prompts.load(config.prompts)
        self.model: ChatModel = config.model.build(run=None)
        if config.max_cost is not None and not self.model.priced:
            fix = "write price: {input: ..., output: ...}, US dollars for a million tokens"
            raise GymError(
                f"nobody knows what `{self.model.name}` costs, and `max_cost` needs that", key="price", fix=fix
            )
        self.ledger = Ledger(config.max_cost, config.max_total_tokens)
        self.left_out: dict[str, list[str]] = {}  #: parameters that its model refuses, where the run keeps no journal
        self._unheard: tuple[Sequence[RewardInput], GymError] | None = None  #: answers to which no reply came, and why

    @property
    def models(self) -> Sequence[ChatModel]:
        """The model that is asked."""
        return (self.model,)

    def __call__(self, inputs: Sequence[RewardInput], *, account: Account | None = None) -> list[float | None]:
        """Return the grades, from 0 to 1; None where there is none. Raises GymError where a model refuses, a cap is reached or no
        answer gets a reply; each alone is then not asked about again.
        """
        if account is not None:
            found = self._graded(inputs, account)
            account.insist(self.model)
            return found
        if self._unheard and all(any(one is other for other in self._unheard[0]) for one in inputs):
            raise self._unheard[1]
        journal = Journal(None, {})
        journal.left_out = self.left_out
        with Caller(journal, self.ledger, self.model.concurrency) as caller:
            try:
                found = self._graded(inputs, alone(inputs, caller))
            except CapReached as error:
                raise GymError(f"stopped: {error}", fix="raise `max_cost` or `max_total_tokens` of the judge") from None
        if failed := caller.heard_nothing(self.model, len(inputs)):
            self._unheard = list(inputs), failed
            raise failed
        return found

    def _graded(self, inputs: Sequence[RewardInput], account: Account) -> list[float | None]:
        def graded(one: RewardInput) -> float | None:
            reply = account.ask(self.model, one, self.request(one))
            if reply is None:
                return None
            account.remark(one, reply.text)
            return grade(reply.text) if reply.finished else None  # the last grade may be one that it quotes

        return account.map(graded, inputs, self.model)

    def request(self, answer: RewardInput) -> ChatRequest:
        """Return what the judge is asked about an answer."""
        blocks = [block("TASK", shown(answer.context)), block("ANSWER", answer.text)]
        if known := final_answers(answer.row.get(self.config.answer)):
            blocks.append(block("REFERENCE ANSWER", "\n".join(known)))
        messages = self.prompts.asked("judge", blocks, rubric=self.config.rubric)
        return ChatRequest(messages, self.config.max_new_tokens, self.config.temperature)


def grade(text: str) -> float | None:
    """Return the last grade of a reply, from 0 to 1; None where there is none, or one that is out of bounds."""
    found = _GRADE.findall(text)
    value = float(found[-1]) / BEST if found else None
    return value if value is not None and value <= 1 else None
