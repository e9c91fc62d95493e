"""A member's part of a round with secure aggregation: what leaves this machine is masked, and alone it says nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from gym_core import GymError
from gym_deltasoup.client.client import SoupClient
from gym_deltasoup.ledger.hash_chain import Event
from gym_deltasoup.ledger.signatures import holds, message, signed
from gym_deltasoup.rounds.secure_steps import ADVERTISE, CONFIRM, MASKED, REVEAL, SHARE, STEPS, context
from gym_deltasoup.secure.fixed_point import encoded
from gym_deltasoup.secure.member import PublicKeys, SecureMember
from gym_deltasoup.secure.shamir import SHARE as SHARE_BYTES

LEAST = 3  #: members of a group whose sum does not show one of them to the other


class SecureContribution:
    """Steps of one member in one round: `run` takes them all, and waits for the others in between.

    Secrets are in memory alone: whoever stops in the middle counts as dropped out.

    Args:
        client: of the server.
        member: name there.
        change: what was trained, fp32 `[numbers]` of the layout of the community.
        base: fingerprint of the base.
        layout: digest of the layout.
        wait: seconds between looks at what the server says.

    """

    def __init__(
        self, client: SoupClient, member: str, change: Tensor, base: str, layout: str, wait: float = 1.0
    ) -> None:
        """Ask the server for its round."""
        told = client.server()
        self.client, self.name, self.change, self.base, self.layout, self.wait = (
            client, member, change, base, layout, wait
        )  # fmt: skip
        self.server, self.round, self.rules = told["server"], told["round"]["number"], told["secure"]
        self.secrets = SecureMember(member, context(self.server, self.round))
        self.keys: dict[str, str] = {}  #: that sign for each member of the group

    def run(self, announce: Callable[[str], None] | None = None) -> Event:
        """Return the event that accepts the masked numbers. Raises GymError where the round goes on without this member."""
        clip, length = float(self.rules["clip"]), float(self.change.double().norm())
        if announce is not None and length > clip:
            announce(f"the change has a norm of {length:.4g}, and is cut to {clip:g}")
        self.advertise()
        members = self.share()
        event = self.send(members)
        self.confirm()
        self.reveal()
        return event

    def advertise(self) -> None:
        """Take part."""
        keys = self.secrets.advertise()
        self.say(ADVERTISE, layout=self.layout, shares=keys.shares.hex(), masks=keys.masks.hex())

    def share(self) -> int:
        """Wait for the group, and give each other member shares of the secrets; return how many members there are."""
        told = self._wait_for(SHARE)["members"]
        least = max(LEAST, int(self.rules["group"]))
        if len(told) < least:
            why = f"the server put this member into a group of {len(told)}, and {least} were promised"
            raise GymError(why, where=self.client.url, key="secure_group", fix="do not go on with this server")
        keys = {name: self.checked(name, said) for name, said in told.items()}
        shares = self.secrets.share(keys, len(told) // 2 + 1)
        self.say(SHARE, shares={name: text.hex() for name, text in shares.items()})
        return len(told)

    def send(self, members: int) -> Event:
        """Wait for the shares of others, and upload the masked numbers."""
        told = self._wait_for(MASKED)
        self.secrets.receive({name: bytes.fromhex(text) for name, text in told["shares"].items()})
        words = self.secrets.masked(encoded(self.change, float(self.rules["clip"]), members))
        with TemporaryDirectory() as folder:
            file = Path(folder) / "masked"
            file.write_bytes(words.astype("<u4").tobytes())
            return self.client.contribute(self.name, file, "masked", {"masked": True}, self.base)

    def confirm(self) -> None:
        """Wait for whose numbers came, and sign who that is."""
        self.say(CONFIRM, came=self.secrets.confirm(self._wait_for(CONFIRM)["came"]))

    def reveal(self) -> None:
        """Wait for what others signed, and give shares that take the masks away. Raises GymError where it is other than this."""
        signed_by = self._wait_for(REVEAL)["confirmed"]
        confirmed = {name: self._signed(name, said, CONFIRM)["came"] for name, said in signed_by.items()}
        found = self.secrets.reveal(confirmed)

        def texts(shares: Mapping[str, int]) -> dict[str, str]:
            return {name: share.to_bytes(SHARE_BYTES, "big").hex() for name, share in shares.items()}

        self.say(REVEAL, own=texts(found.own), keys=texts(found.keys))

    def _wait_for(self, step: str) -> dict[str, Any]:
        while True:
            told = self.client.secure_state(self.name)
            late = told["round"] != self.round or STEPS.index(told["step"]) > STEPS.index(step)
            if late or not told["advertised"] or (told["step"] == step and "members" not in told):
                why = f"round {self.round} went on without this member"
                raise GymError(why, where=self.client.url, key="round", fix="contribute to the next")
            if told["step"] == step:
                return told
            time.sleep(self.wait)

    def say(self, step: str, **said: Any) -> None:
        """Sign and send what is said in a step."""
        told = {
            "server": self.server,
            "round": self.round,
            "base": self.base,
            "member": self.name,
            "step": step,
            **said,
        }
        told["time"] = time.time()
        self.client.say_secure(told, signed(self.client.key, message("secure", told)))

    def checked(self, name: str, said: Mapping[str, Any]) -> PublicKeys:
        """Return the keys of a member, as it signed them. Raises GymError where it did not sign them for this round."""
        self.keys[name] = self.client.member(name)["key"]
        step = self._signed(name, said, ADVERTISE)
        if step["layout"] != self.layout:
            raise GymError(f"{name} adds up other weights", where=self.client.url, key="layout")
        return PublicKeys(bytes.fromhex(step["shares"]), bytes.fromhex(step["masks"]))

    def _signed(self, name: str, said: Mapping[str, Any], wanted: str) -> dict[str, Any]:
        """Return what a member said in a step, with the key that it had when this member first heard of it."""
        step: dict[str, Any] = said["step"]
        meant = (step["server"], step["round"], step["member"], step["step"])
        right = meant == (self.server, self.round, name, wanted) and name in self.keys
        if not right or not holds(self.keys[name], message("secure", step), said["signature"]):
            raise GymError(
                f"{name} did not sign this `{wanted}` for this round", where=self.client.url, key="signature"
            )
        return step
