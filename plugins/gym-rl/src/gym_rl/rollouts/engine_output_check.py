"""What an engine returned is what it promised, or the run stops: nothing is trained on what cannot be true."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gym_core import GymError
from gym_torch.generation.row import Completion
from gym_torch.generation.stop_strings import StopStrings

_ROUNDING = 1e-3  #: by which the logarithm of a probability may be above 0
_FIX = "`rollouts: local` generates with the model that is trained"


def check(
    made: Sequence[Completion],
    asked: Sequence[str],
    longest: int,
    engine: str = "",
    stop: StopStrings | None = None,
) -> None:
    """Raise GymError unless there is a completion for each row of `asked` (its name), made of tokens and probabilities.

    `longest` is the most tokens a completion may have; `engine` what it is called; `stop` the texts that end one.
    """

    def wrong(why: str, name: str, key: str = "rollouts", fix: str = _FIX) -> GymError:
        return GymError(
            f"rollouts {engine} {why}" if engine else f"the engine {why}",
            where=f"row {name}" if name else "",
            key=f"algorithm.{key}",
            fix=fix,
        )

    if len(made) != len(asked):
        raise wrong(f"returned {len(made)} completions of {len(asked)} prompts", "")
    for answer, name in zip(made, asked, strict=True):
        tokens, log_probs = answer.tokens, answer.log_probs
        if not 0 < len(tokens) <= longest:
            raise wrong(f"returned a completion of {len(tokens)} tokens, where 1 to {longest} were asked for", name)
        if len(log_probs) != len(tokens):
            raise wrong(f"returned {len(log_probs)} log-probabilities for {len(tokens)} tokens", name)
        odd = [value for value in log_probs if not (math.isfinite(value) and value <= _ROUNDING)]
        if odd:
            raise wrong(f"returned {odd[0]} as the log-probability of a token", name)
        if stop and (late := stop.within(tokens[:-1])) is not None:
            raise wrong(
                f"went on behind {late!r}, which ends a completion", name, "stop", f"leave `stop` out, or {_FIX}"
            )
        if stop and answer.stop is not None and stop.within(tokens) is None:
            raise wrong(f"says that {answer.stop!r} ended a completion which does not hold it", name)
        if stop and not answer.finished and (held := stop.within(tokens)) is not None:
            raise wrong(f"does not say that {held!r} ended a completion", name, "stop", f"leave `stop` out, or {_FIX}")
