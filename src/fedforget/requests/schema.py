"""The SQL schema of the record's request tables."""

from __future__ import annotations

from fedforget.disk.column_checks import check, is_blob, is_digest, is_id, is_name, is_one_of, is_text, is_whole
from fedforget.requests.lifecycle import GUARANTEE_LAW, GUARANTEE_PATH, Basis, Stage

_MAC_BYTES = 16

SCHEMA = f"""
CREATE TABLE requests (
    id TEXT PRIMARY KEY {check(is_name("id"))},
    batch_id TEXT {check(is_name("batch_id"), optional="batch_id")},
    place INTEGER NOT NULL {check(is_whole("place"))},
    level TEXT NOT NULL {check(is_one_of("level", "sample", "client"))},
    basis TEXT NOT NULL {check(is_one_of("basis", *Basis))},
    state TEXT NOT NULL {check(is_one_of("state", *Stage))},
    received TEXT NOT NULL {check(is_name("received"))},
    deadline TEXT {check(is_name("deadline"), optional="deadline")},
    reason TEXT {check(is_text("reason"), optional="reason")},
    first_changed_step INTEGER {check(is_whole("first_changed_step", 1), optional="first_changed_step")},
    recomputed_steps INTEGER {check(is_whole("recomputed_steps"), optional="recomputed_steps")},
    steps_alone INTEGER {check(is_whole("steps_alone"), optional="steps_alone")},
    guarantee TEXT {check(is_one_of("guarantee", GUARANTEE_LAW, GUARANTEE_PATH), optional="guarantee")},
    model_round INTEGER {check(is_whole("model_round"), optional="model_round")},
    model_digest TEXT {check(is_digest("model_digest"), optional="model_digest")},
    model_mac BLOB {check(is_blob("model_mac", _MAC_BYTES), optional="model_mac")},
    state_digest TEXT {check(is_digest("state_digest"), optional="state_digest")}
) WITHOUT ROWID;
CREATE TABLE waiting (
    request TEXT PRIMARY KEY {check(is_name("request"))},
    client NOT NULL {check(is_id("client"))},
    sample {check(is_id("sample"), optional="sample")}
) WITHOUT ROWID;
CREATE TABLE intents (
    batch_id TEXT PRIMARY KEY {check(is_name("batch_id"))},
    stage TEXT NOT NULL {check(is_one_of("stage", *Stage))},
    body TEXT NOT NULL {check(is_text("body"))}
) WITHOUT ROWID;
CREATE TABLE erased (
    pseudonym BLOB NOT NULL {check(is_blob("pseudonym", _MAC_BYTES))},
    sequence INTEGER NOT NULL {check(is_whole("sequence"))},
    request TEXT NOT NULL {check(is_name("request"))},
    returned INTEGER NOT NULL {check(is_whole("returned", 0, 1))},
    PRIMARY KEY (pseudonym, sequence)
) WITHOUT ROWID;
CREATE TABLE keys (
    mac BLOB PRIMARY KEY {check(is_blob("mac", _MAC_BYTES))},
    body BLOB NOT NULL {check(is_blob("body", _MAC_BYTES))},
    requests TEXT NOT NULL {check(is_text("requests"))}
) WITHOUT ROWID;
CREATE TABLE aliases (
    id TEXT PRIMARY KEY {check(is_name("id"))},
    request TEXT NOT NULL {check(is_name("request"))}
) WITHOUT ROWID;
"""
