"""Plausibility checks across rows and tables, beyond the CHECK constraints of single columns.

``verify`` checks that the values are the right ones.
"""

from __future__ import annotations

from fedforget.algorithm.plan import Plan
from fedforget.disk.database import Database
from fedforget.errors import InvalidInput, RunDamaged
from fedforget.requests.lifecycle import as_written
from fedforget.requests.policy import Policy


def validate_server(database: Database, plan: Plan) -> None:
    values = dict(database.rows("SELECT key, value FROM server"))
    for key in ("seed", "nonce", "seed_origin", "tree_key", "plan_digest", "rounds_done"):
        _require(database, key in values, key)
    done = values["rounds_done"]
    _require(database, done <= plan.rounds, "rounds_done")
    [(count,)] = database.rows("SELECT count(*) FROM rounds")
    _require(database, count == plan.kept_count(done), "the number of its models")
    kept = [round_ for (round_,) in database.rows("SELECT round FROM rounds ORDER BY round")]
    _require(database, kept[-1] == done, "the model of its last round")
    _require(database, all(plan.is_kept(round_, done) for round_ in kept), "the rounds whose models are kept")


def validate_record(database: Database) -> None:
    values = dict(database.rows("SELECT key, value FROM record"))
    for key in ("pseudonym_key", "tainted"):
        _require(database, key in values, key)
    _require(database, bool(database.rows("SELECT 1 FROM events LIMIT 1")), "the trail of events")
    if "policy" in values:
        _require(database, _is_policy(values["policy"]), "policy")
    times = database.rows("SELECT received FROM requests UNION SELECT deadline FROM requests")
    _require(database, all(_is_time(time) for (time,) in times if time is not None), "the time of a request")
    lost = "SELECT 1 FROM {0} WHERE {1} IS NOT NULL AND {1} NOT IN (SELECT {2} FROM {3}) LIMIT 1"
    for table, column, own, other in _REFERENCES:
        _require(database, not database.rows(lost.format(table, column, own, other)), f"what {table} refers to")
    [(wrong,)] = database.rows(
        "SELECT count(*) FROM waiting JOIN requests USING (number) WHERE state <> 'accepted' OR batch_id IS NOT NULL"
    )
    _require(database, not wrong, "the state of a pending request")
    begun = "SELECT 1 FROM requests JOIN intents USING (batch_id) WHERE state <> 'accepted' LIMIT 1"
    _require(database, not database.rows(begun), "the state of a request whose batch is at work")


_REFERENCES = (
    ("waiting", "number", "number", "requests"),
    ("waiting", "key", "key", "waiting_keys"),
    ("erased", "request", "id", "requests"),
    ("aliases", "request", "id", "requests"),
    ("intents", "batch_id", "batch_id", "batches"),
    ("requests", "batch_id", "batch_id", "batches"),
)


def _require(database: Database, holds: bool, what: str) -> None:
    if not holds:
        raise RunDamaged(f"{database.path} is damaged: {what} is missing or invalid")


def _is_policy(text: str) -> bool:
    try:
        Policy.decode(text)
    except (ValueError, OverflowError, InvalidInput):
        return False
    return True


def _is_time(text: str) -> bool:
    try:
        as_written(text)
    except ValueError:
        return False
    return True
