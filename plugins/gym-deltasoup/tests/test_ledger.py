"""The ledger: any changed byte is noticed by whoever has its events, and what was accepted survives the process."""

from __future__ import annotations

import hashlib
import sqlite3

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gym_core import GymError
from gym_deltasoup.ledger import merkle
from gym_deltasoup.ledger.hash_chain import Event, anchor, canonical, chained
from gym_deltasoup.ledger.ledger import Ledger
from gym_deltasoup.ledger.signatures import holds, message, private_key, public, signed
from gym_deltasoup.ledger.verify import exported, imported, verify


def leaf_root(leaves):
    """RFC 9162, section 2.1.1, word for word."""
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = max(2**power for power in range(20) if 2**power < len(leaves))
    return hashlib.sha256(b"\1" + leaf_root(leaves[:k]) + leaf_root(leaves[k:])).digest()


def test_merkle_roots():
    assert merkle.root([]) == hashlib.sha256().digest()
    leaves = [bytes([number]) * number for number in range(1, 20)]
    for count in range(1, len(leaves) + 1):
        assert merkle.root(leaves[:count]) == leaf_root(leaves[:count])


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Return the lines of a ledger of a round with two signed contributions, as anybody gets them."""
    ledger, keys = Ledger(tmp_path_factory.mktemp("soup")), {name: Ed25519PrivateKey.generate() for name in "abs"}
    server = ledger.identity("server")
    with ledger.writing() as rows:
        ledger.append(rows, "server key", 1, key=public(keys["s"]))
        ledger.append(rows, "base", 1, name="tiny", fingerprint="f" * 64)
        for name in "ab":
            ledger.append(rows, "enrolled", 1, member=name, key=public(keys[name]))
            data = {"member": name, "content": name * 64, "size": 8, "details": {"rank": 2, "alpha": 4.0}}
            manifest = {**data, "server": server, "round": 1, "base": "f" * 64, "time": 1.5}
            proof = {"manifest": manifest, "signature": signed(keys[name], message("contribution", manifest))}
            ledger.append(rows, "accepted", 1, **data, kind="adapter", **proof)
        bodies = [body.encode() for (body,) in rows.execute("SELECT body FROM events ORDER BY number")]
        root = merkle.root(bodies).hex()
        result = {"accepted": ["a"], "refused": {"b": "why"}, "points": {"a": 10, "b": 0}, "pool": 10}
        proof = {"root": root, "events": len(bodies), "signature": signed(keys["s"], anchor(server, 1, root))}
        ledger.append(rows, "round closed", 1, **result, **proof)
        ledger.open_round(rows, 2)
    lines = [*exported(server, ledger.every_event())]
    ledger.close()
    return lines


def problems(lines, known=None):
    try:
        return verify(*imported(lines), known).problems
    except ValueError as error:
        return [str(error)]


def test_a_ledger_is_verified(told):
    found = verify(*imported(told))
    assert not found.problems and found.events == 9 and found.accepted == found.signatures == 2
    assert [*found.rounds] == [1]
    assert not verify(*imported(told), found.head).problems
    assert "was cut" in problems(told[:-1], found.head)[0]


def test_any_changed_byte_is_noticed(told):
    text = "\n".join(told).encode()
    for place in range(0, len(text), 3):
        for change in (1, 0x20):
            other = bytearray(text)
            other[place] ^= change
            lines = other.decode("utf-8", "replace").split("\n")
            try:
                same = imported(lines) == imported(told)
            except ValueError:
                same = False
            assert same or problems(lines), f"byte {place}: {text[place - 20 : place + 20]!r}"


def rechained(server, events):
    """Return what a liar tells who changed an event and made all hashes anew."""
    made, before = [], "0" * 64
    for number, event in enumerate(events, 1):
        before = chained(before, number, event.round, event.body)
        made.append(Event(number, event.round, event.body, before))
    return [*exported(server, made)]


@pytest.mark.parametrize(
    ("number", "old", "new", "said"),
    [
        (5, '"size":8', '"size":9', "signed has another `size`"),
        (5, '"rank":2', '"rank":3', "signed has another `details`|signature of a does not hold"),
        (5, '"time":1.5', '"time":2.5', "the signature of a does not hold"),
        (8, '"a":10', '"a":11', "do not sum to 10"),
        (8, '"points":{"a":10,"b":0}', '"points":{"a":0,"b":10}', "gives points to b, of whom it accepted nothing"),
        (8, '"points":{"a":10,', '"points":{"eve":10,', "gives points to eve, of whom it accepted nothing"),
        (8, '"accepted":["a"]', '"accepted":[]', "does not count each accepted contribution once"),
        (6, '"enrolled"', '"unknown"', "b is not enrolled"),
        (2, '"key":"', '"key":"00', "the server did not sign"),
    ],
)
def test_a_liar_who_makes_all_hashes_anew_is_found_by_what_others_signed(told, number, old, new, said):
    server, events = imported(told)
    body = events[number - 1].body
    assert old in body
    changed = body.replace(old, new, 1)
    events[number - 1] = Event(number, events[number - 1].round, changed, events[number - 1].hash)
    found = problems(rechained(server, events))
    assert any(part in each for part in said.split("|") for each in found), found


def test_events_that_are_left_out_doubled_or_swapped_are_noticed(told):
    server, events = imported(told)
    for other in (events[:4] + events[5:], events[:5] + events[4:], [*events[:3], events[4], events[3], *events[5:]]):
        assert problems([*exported(server, other)]) and problems(rechained(server, other))
    assert any("another `server`" in each for each in problems(rechained("0" * 32, events)))


def test_rows_are_appended_never_changed_and_survive(tmp_path):
    ledger = Ledger(tmp_path)
    with pytest.raises(ZeroDivisionError), ledger.writing() as rows:
        ledger.append(rows, "never", 1)
        raise ZeroDivisionError
    for query in ("UPDATE events SET body = ''", "DELETE FROM events"):
        with pytest.raises(GymError, match="only appended"), ledger.writing() as rows:
            rows.execute(query)
    head, server = ledger.events()[-1], ledger.identity("server")
    ledger.close()
    again = Ledger(tmp_path)
    assert again.events()[-1] == head and again.identity("server") == server and len(again.events()) == 1
    again.close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as rows:
        rows.execute("PRAGMA user_version = 9")
    with pytest.raises(GymError, match="layout 9"):
        Ledger(tmp_path)


def test_keys_are_their_owners_and_texts_have_one_form(tmp_path):
    key = private_key(tmp_path / "new/key.pem")
    assert (tmp_path / "new/key.pem").stat().st_mode & 0o077 == 0
    assert public(private_key(tmp_path / "new/key.pem")) == public(key)
    signature = signed(key, b"text")
    assert holds(public(key), b"text", signature) and not holds(public(key), b"texts", signature)
    assert not holds("no key", b"text", signature) and not holds(public(key), b"text", "zz")
    assert canonical({"b": 1.5, "a": "ü"}) == '{"a":"\\u00fc","b":1.5}' == canonical({"a": "ü", "b": 1.5})
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"a": float("nan")})
    (tmp_path / "other").write_text("no key")
    with pytest.raises(GymError, match="this is no key"):
        private_key(tmp_path / "other")
