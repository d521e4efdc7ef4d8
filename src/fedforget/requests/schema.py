"""The SQL schema of the record's request tables."""

from __future__ import annotations

from fedforget.disk.column_checks import check, is_blob, is_name, is_one_of, is_text, is_whole
from fedforget.disk.parsing import LONGEST
from fedforget.requests.lifecycle import GUARANTEE_LAW, GUARANTEE_PATH, Basis, Stage

_MAC_BYTES = 16
_KEY = is_whole("key", 1)

SCHEMA = f"""
CREATE TABLE requests (
    number INTEGER PRIMARY KEY {check(is_whole("number", 1))},
    id TEXT NOT NULL {check(is_name("id"))},
    batch_id TEXT {check(is_name("batch_id"), optional="batch_id")},
    place INTEGER NOT NULL {check(is_whole("place"))},
    level TEXT NOT NULL {check(is_one_of("level", "sample", "client"))},
    basis TEXT NOT NULL {check(is_one_of("basis", *Basis))},
    state TEXT NOT NULL {check(is_one_of("state", Stage.ACCEPTED, Stage.PURGED, Stage.REJECTED, Stage.CANCELLED))},
    received TEXT NOT NULL {check(is_name("received"))},
    deadline TEXT {check(is_name("deadline"), optional="deadline")},
    reason TEXT {check(is_text("reason"), optional="reason")},
    first_changed_step INTEGER {check(is_whole("first_changed_step", 1), optional="first_changed_step")},
    steps_alone INTEGER {check(is_whole("steps_alone"), optional="steps_alone")}
) STRICT;
CREATE UNIQUE INDEX requests_by_id ON requests (id);
CREATE INDEX requests_by_batch ON requests (batch_id, place) WHERE batch_id IS NOT NULL;
CREATE INDEX requests_by_state ON requests (state, deadline);
CREATE TABLE batches (
    batch_id TEXT PRIMARY KEY {check(is_name("batch_id"))},
    recomputed_steps INTEGER NOT NULL {check(is_whole("recomputed_steps"))},
    guarantee TEXT {check(is_one_of("guarantee", GUARANTEE_LAW, GUARANTEE_PATH), optional="guarantee")},
    model_round INTEGER {check(is_whole("model_round"), optional="model_round")},
    model_of TEXT {check(is_name("model_of"), optional="model_of")},
    model_mac BLOB {check(is_blob("model_mac", _MAC_BYTES), optional="model_mac")}
) STRICT, WITHOUT ROWID;
CREATE TABLE standing (
    kind TEXT NOT NULL {check(is_name("kind"))},
    about TEXT NOT NULL {check(is_name("about"))},
    round INTEGER NOT NULL {check(is_whole("round"))},
    key INTEGER NOT NULL {check(_KEY)},
    body BLOB NOT NULL {check(is_blob("body", 1, LONGEST))},
    PRIMARY KEY (kind, about)
) STRICT, WITHOUT ROWID;
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY {check(is_whole("number", 1))},
    target BLOB NOT NULL {check(is_blob("target", _MAC_BYTES))},
    client BLOB NOT NULL {check(is_blob("client", _MAC_BYTES))},
    key INTEGER NOT NULL {check(_KEY)},
    body BLOB NOT NULL {check(is_blob("body", 1, LONGEST))}
) STRICT;
CREATE INDEX waiting_by_target ON waiting (target);
CREATE INDEX waiting_by_client ON waiting (client);
CREATE INDEX waiting_by_key ON waiting (key);
CREATE TABLE waiting_keys (
    key INTEGER PRIMARY KEY {check(_KEY)},
    entered INTEGER NOT NULL {check(is_whole("entered"))},
    spent INTEGER NOT NULL {check(is_whole("spent", 0, 1))}
) STRICT;
CREATE TABLE intents (
    batch_id TEXT PRIMARY KEY {check(is_name("batch_id"))},
    stage TEXT NOT NULL {check(is_one_of("stage", *Stage))},
    key INTEGER NOT NULL {check(_KEY)},
    body BLOB NOT NULL {check(is_blob("body", 1, LONGEST))}
) STRICT, WITHOUT ROWID;
CREATE TABLE erased (
    pseudonym BLOB NOT NULL {check(is_blob("pseudonym", _MAC_BYTES))},
    sequence INTEGER NOT NULL {check(is_whole("sequence"))},
    request TEXT NOT NULL {check(is_name("request"))},
    returned INTEGER NOT NULL {check(is_whole("returned", 0, 1))},
    PRIMARY KEY (pseudonym, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX erased_by_request ON erased (request);
CREATE TABLE keys (
    mac BLOB PRIMARY KEY {check(is_blob("mac", _MAC_BYTES))},
    body BLOB NOT NULL {check(is_blob("body", _MAC_BYTES))},
    requests TEXT NOT NULL {check(is_text("requests"))}
) STRICT, WITHOUT ROWID;
CREATE TABLE aliases (
    id TEXT PRIMARY KEY {check(is_name("id"))},
    request TEXT NOT NULL {check(is_name("request"))}
) STRICT, WITHOUT ROWID;
"""
