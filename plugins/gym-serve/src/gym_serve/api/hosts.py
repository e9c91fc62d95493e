"""By which names a server may be called, and from which pages.

A page of a stranger can have a browser ask this machine: under a name of its own that leads here, or across origins. Both are
refused before a body is read.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

from gym_serve.api.errors import HTTPProblem
from gym_serve.api.options import LOOPBACK, ApiOptions


class Hosts:
    """Checks the headers `Host` and `Origin`."""

    def __init__(self, options: ApiOptions) -> None:
        """Take the names that are this server's."""
        own = {options.host, *options.allowed_hosts, *LOOPBACK, *(() if options.local else (socket.gethostname(),))}
        self._names = {_bare(name) for name in own}
        self._addresses = not options.local
        self._origins = {origin.rstrip("/").lower() for origin in options.allowed_origins}

    def check(self, hosts: list[str], origins: list[str]) -> str | None:
        """Return the origin whose page may read the reply, if one asks. Raises HTTPProblem where nobody may."""
        name = _bare(hosts[0]) if len(hosts) == 1 else ""
        if not name or not (name in self._names or (self._addresses and _address(name))):
            why = "the request names another host than this server"
            raise HTTPProblem(421, f"{why}; add it to `allowed_hosts` if it is one", code="wrong_host")
        if not origins:
            return None
        origin = origins[0].rstrip("/").lower()
        if len(origins) == 1 and origin in self._origins:
            return origins[0]
        if len(origins) > 1 or urlsplit(origin).netloc != hosts[0].lower():
            why = "pages of this origin may not ask"
            raise HTTPProblem(403, f"{why}; add it to `allowed_origins` if they may", code="wrong_origin")
        return None


def _bare(host: str) -> str:
    """Return a host without its port, in small letters; empty where it is none."""
    try:
        found = urlsplit(f"//{host if host.count(':') < 2 or host.startswith('[') else f'[{host}]'}")
        return (found.hostname or "") if not (found.path or found.username or found.query) else ""
    except ValueError:
        return ""


def _address(name: str) -> bool:
    """Whether it is an address and no name, which somebody could have lead here."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
