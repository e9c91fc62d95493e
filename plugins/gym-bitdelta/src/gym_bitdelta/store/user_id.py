"""What may name a user. An id is never used as a path here; that it is none protects whoever writes files for a user."""

from __future__ import annotations

import re
import unicodedata

from gym_core import GymError
from gym_core.errors import printable

LONGEST = 256
#: Names of the base alone, of all variants, and of the devices that Windows finds in every folder; in any case of letters.
RESERVED = {"base", "none", "null", "all", "con", "prn", "aux", "nul"} | {
    f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10)
}
_DRIVE = re.compile(r"[A-Za-z]:")


def check_user_id(user: object) -> str:
    """Return a user id. Raises GymError where it is none, with the reason."""
    if why := _wrong(user):
        raise GymError(
            why,
            where=f"user_id {printable(repr(user), 60)}",
            key="user_id",
            fix=f"an id is text of 1 to {LONGEST} printable characters that is no path, such as `user_123` or `ann@example.com`",
        )
    return str(user)


def _wrong(user: object) -> str:
    if not isinstance(user, str):
        return f"it is {type(user).__name__}, and no text"
    if not 1 <= len(user) <= LONGEST:
        return f"it has {len(user):,} characters"
    if not user.isprintable():
        return "it has characters that cannot be printed"
    if user != user.strip():
        return "it begins or ends with a space"
    if user != unicodedata.normalize("NFC", user):
        return "it is not in Unicode's normal form C, so that two ids could look the same"
    if "/" in user or "\\" in user or user in {".", ".."} or _DRIVE.match(user):
        return "it is a path"
    if user.partition(".")[0].lower() in RESERVED:
        return "this name is reserved"
    return ""
