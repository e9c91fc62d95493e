"""The file of a ledger, and what it holds."""

from __future__ import annotations

from pathlib import Path

from gym_data.database import Database, Schema

NAME = "ledger.sqlite"
SCHEMA = Schema(
    "ledger",
    "gym-deltasoup",
    2,
    """
CREATE TABLE identity (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (number INTEGER PRIMARY KEY, round INTEGER NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TRIGGER no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are only appended'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are only appended'); END;
CREATE TABLE rounds (number INTEGER PRIMARY KEY, opened REAL NOT NULL, state TEXT NOT NULL DEFAULT 'open');
CREATE TABLE members (
  name TEXT PRIMARY KEY, key TEXT UNIQUE, identity TEXT UNIQUE, round INTEGER NOT NULL, reputation REAL NOT NULL DEFAULT 0);
CREATE TABLE invites (code TEXT PRIMARY KEY, member TEXT);
CREATE TABLE contributions (
  round INTEGER NOT NULL, member TEXT NOT NULL, content TEXT NOT NULL, size INTEGER NOT NULL, kind TEXT NOT NULL,
  details TEXT NOT NULL, event INTEGER NOT NULL UNIQUE, passed INTEGER,
  PRIMARY KEY (round, member), UNIQUE (round, content));
CREATE INDEX contributions_of ON contributions (content);
CREATE TABLE refusals (round INTEGER NOT NULL, member TEXT NOT NULL, why TEXT NOT NULL);
CREATE INDEX refusals_of ON refusals (round, member);
CREATE TABLE uploads (
  token TEXT PRIMARY KEY, round INTEGER NOT NULL, member TEXT NOT NULL, content TEXT NOT NULL, size INTEGER NOT NULL,
  received INTEGER NOT NULL, manifest TEXT NOT NULL, touched REAL NOT NULL, UNIQUE (round, member));
CREATE TABLE secure_rounds (round INTEGER PRIMARY KEY, step TEXT NOT NULL, ends REAL NOT NULL, teams TEXT NOT NULL);
CREATE TABLE secure_said (
  round INTEGER NOT NULL, member TEXT NOT NULL, step TEXT NOT NULL, said TEXT NOT NULL, PRIMARY KEY (round, member, step));
INSERT INTO identity VALUES ('server', lower(hex(randomblob(16))));
""",
)


def open_database(folder: Path) -> Database:
    """Open the file in a folder, which is made where there is none. Raises what `gym_data.database.Database` raises."""
    return Database(folder / NAME, SCHEMA)
