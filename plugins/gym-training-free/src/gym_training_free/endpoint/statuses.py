"""What the status of a reply means for its request, and for all others of a run."""

from __future__ import annotations

from gym_training_free.endpoint.unsupported_parameter import error_field

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
#: Statuses of those that stand before a server: it may have answered, and counted, what never came through.
BETWEEN = frozenset({408, 502, 504, 520, 524})
AWAY = PASSING - {409, 500}  #: statuses of a server that is down or too busy, whatever it is asked
NAMING = frozenset({400, 422})  #: statuses whose text may name a parameter that the server does not take
EMPTY = 402  #: an account with nothing left; some servers say so with 429, as if waiting helped
QUOTA = "insufficient_quota"  #: how they name it, in `error.code` or `error.type`
_NAMES = "see the name of the model, `base_url`, and the variable that holds the key"
#: By status, why no request of this run will ever succeed, and what to do.
REFUSED = {
    401: ("does not accept the key", _NAMES),
    EMPTY: (
        "has nothing left on the account of this key",
        "fill it and run this again; a run with an `output` goes on",
    ),
    403: ("does not let this key ask", _NAMES),
    404: ("knows no such model or address", _NAMES),
}


def refusal(status: int, body: bytes) -> tuple[str, str] | None:
    """Return why no request of this run will ever succeed, and what to do; None where one may."""
    text = body.decode("utf-8", "replace")
    empty = QUOTA in (error_field(text, "code"), error_field(text, "type"))
    return REFUSED.get(EMPTY if empty else status)
