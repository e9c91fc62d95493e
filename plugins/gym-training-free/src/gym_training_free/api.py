"""Training-Free GRPO from Python: `TrainingFreeGRPO(model, config).train(dataset, reward_fn)`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

from gym_core.errors import GymError
from gym_core.files import expanded
from gym_core.outputlock import OutputLock
from gym_training_free import questions
from gym_training_free.answer_rewards import judge
from gym_training_free.config import GRPOConfig, OpenAI
from gym_training_free.endpoint.chat import ChatEndpoint
from gym_training_free.endpoint.ledger import CapReached
from gym_training_free.experience.library import ExperienceLibrary
from gym_training_free.open_endpoint import endpoint
from gym_training_free.run import models
from gym_training_free.session import Setting, asking, learn, save


class TrainingFreeGRPO:
    """A model behind an endpoint, which learns from its own answers without a change of its weights."""

    def __init__(
        self,
        model: str,
        config: GRPOConfig | None = None,
        base_url: str | None = None,
        api_key: str = "",
        *,
        output: str | Path | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Name a model and how to learn.

        Args:
            model: its name at the endpoint, or the folder of a model.
            config: how to learn; the defaults are those of the method.
            base_url: address before `/chat/completions`. By default gym-serve serves a folder, from the first question on until
                the trainer is closed or gone; any other name is asked for at `http://127.0.0.1:8000/v1`.
            api_key: sent to this address alone, and written nowhere; a folder is served without one.
            output: folder of the journal and of what is learned. The same call goes on with what an earlier process left there.
            seed: of the order of questions, of what is held out and of each answer.
            **options: further ones of the backend `openai`, such as `concurrency`, `timeout` or `price`.

        Raises:
            pydantic.ValidationError: an option is wrong.
            GymError: the key is none, or would be sent nowhere; a folder holds nothing that can be served.

        """
        self.config = config or GRPOConfig()
        self.backend = OpenAI(path=model, base_url=base_url, **options)
        self.model: ChatEndpoint = endpoint(self.backend, key=api_key or None)
        self.output = None if output is None else expanded(output)
        self.seed = seed

    def __enter__(self) -> Self:
        """Use it for a block, whose end closes it."""
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server that was started for it, if one was; another question starts it again."""
        if self.model.server is not None:
            self.model.server.close()

    def train(
        self, dataset: Iterable[Any] | str | Path, reward_fn: Any = None, validation: Iterable[Any] = ()
    ) -> ExperienceLibrary:
        """Learn from questions and return what was learned.

        Args:
            dataset: rows, each a mapping with a column of the question, or the question itself; or a file of JSON lines.
            reward_fn: a function of an answer and its row that returns a number, or a number and a critique; or a reward of
                gym-rewards, or several. By default the rewards of `config`; without any, groups teach by comparison alone.
            validation: rows that only measure; without them a part of `dataset` does (`held_out`).

        Raises:
            GymError: the endpoint refuses for good, or gives no answer to a whole batch.

        """
        config = self.config
        rows = questions.read(Path(dataset)) if isinstance(dataset, str | Path) else dataset
        asked = questions.asked(rows, config.prompt), questions.asked(validation, config.prompt)
        judging = judge(config.rewards if reward_fn is None else reward_fn, config.reward_timeout)
        try:
            with OutputLock(self.output) if self.output else nullcontext():
                found = questions.questions(*asked, config.held_out, self.seed)
                setting = Setting(config, models(config, self.model, None), found, judging, self.seed)
                library = learn(setting, self.output)
                if self.output:
                    save(library, self.output / "experience")
                return library
        finally:
            if judging is not None:
                judging.close()

    def infer(self, query: Any, experiences: ExperienceLibrary | None = None) -> str:
        """Return the answer to a question, text or messages, with experiences in the prompt, and with tools where there are some.

        Raises GymError where none comes, or a cap leaves no room for one.
        """
        asked = questions.asked([query if isinstance(query, str) else {"messages": query}])
        found = questions.questions(asked, (), 0, self.seed)
        config = self.config
        with asking(Setting(config, models(config, self.model, None), found, None, self.seed), None) as ask:
            library = experiences or ExperienceLibrary()
            try:
                attempts = ask.answers({0: found.train[0]}, library, 1, 0, 0, "infer", config.temperature_eval)
            except CapReached as reached:
                raise ask.caller.ledger.error(reached) from None
            reply, failures = attempts[0][0].reply, ask.caller.failures
        if reply is None:
            why = f"gave no answer: {failures.most_common(1)[0][0]}"
            raise GymError(why, where=self.model.where, key="model", fix="see that it runs, and what it logs")
        return reply.text
