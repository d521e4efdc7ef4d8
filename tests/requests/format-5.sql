CREATE TABLE requests (
    number INTEGER PRIMARY KEY CHECK (typeof(number) = 'integer' AND number BETWEEN 1 AND 9223372036854775807),
    id TEXT NOT NULL CHECK (typeof(id) = 'text' AND length(id) BETWEEN 1 AND 64 AND length(id) = length(CAST(id AS BLOB))),
    batch_id TEXT CHECK (batch_id IS NULL OR (typeof(batch_id) = 'text' AND length(batch_id) BETWEEN 1 AND 64 AND length(batch_id) = length(CAST(batch_id AS BLOB)))),
    place INTEGER NOT NULL CHECK (typeof(place) = 'integer' AND place BETWEEN 0 AND 9223372036854775807),
    level TEXT NOT NULL CHECK (typeof(level) = 'text' AND level IN ('sample', 'client')),
    basis TEXT NOT NULL CHECK (typeof(basis) = 'text' AND basis IN ('exogenous', 'model-informed', 'unknown')),
    state TEXT NOT NULL CHECK (typeof(state) = 'text' AND state IN ('accepted', 'purged', 'rejected', 'cancelled')),
    received TEXT NOT NULL CHECK (typeof(received) = 'text' AND length(received) BETWEEN 1 AND 64 AND length(received) = length(CAST(received AS BLOB))),
    deadline TEXT CHECK (deadline IS NULL OR (typeof(deadline) = 'text' AND length(deadline) BETWEEN 1 AND 64 AND length(deadline) = length(CAST(deadline AS BLOB)))),
    reason TEXT CHECK (reason IS NULL OR (typeof(reason) = 'text')),
    first_changed_step INTEGER CHECK (first_changed_step IS NULL OR (typeof(first_changed_step) = 'integer' AND first_changed_step BETWEEN 1 AND 9223372036854775807)),
    steps_alone INTEGER CHECK (steps_alone IS NULL OR (typeof(steps_alone) = 'integer' AND steps_alone BETWEEN 0 AND 9223372036854775807))
) STRICT;
CREATE UNIQUE INDEX requests_by_id ON requests (id);
CREATE INDEX requests_by_batch ON requests (batch_id, place) WHERE batch_id IS NOT NULL;
CREATE INDEX requests_by_state ON requests (state, deadline);
CREATE TABLE batches (
    batch_id TEXT PRIMARY KEY CHECK (typeof(batch_id) = 'text' AND length(batch_id) BETWEEN 1 AND 64 AND length(batch_id) = length(CAST(batch_id AS BLOB))),
    recomputed_steps INTEGER NOT NULL CHECK (typeof(recomputed_steps) = 'integer' AND recomputed_steps BETWEEN 0 AND 9223372036854775807),
    guarantee TEXT CHECK (guarantee IS NULL OR (typeof(guarantee) = 'text' AND guarantee IN ('law-and-path', 'path'))),
    model_round INTEGER CHECK (model_round IS NULL OR (typeof(model_round) = 'integer' AND model_round BETWEEN 0 AND 9223372036854775807)),
    model_of TEXT CHECK (model_of IS NULL OR (typeof(model_of) = 'text' AND length(model_of) BETWEEN 1 AND 64 AND length(model_of) = length(CAST(model_of AS BLOB)))),
    model_mac BLOB CHECK (model_mac IS NULL OR (typeof(model_mac) = 'blob' AND length(model_mac) BETWEEN 16 AND 16))
) STRICT, WITHOUT ROWID;
CREATE TABLE standing (
    kind TEXT NOT NULL CHECK (typeof(kind) = 'text' AND length(kind) BETWEEN 1 AND 64 AND length(kind) = length(CAST(kind AS BLOB))),
    about TEXT NOT NULL CHECK (typeof(about) = 'text' AND length(about) BETWEEN 1 AND 64 AND length(about) = length(CAST(about AS BLOB))),
    round INTEGER NOT NULL CHECK (typeof(round) = 'integer' AND round BETWEEN 0 AND 9223372036854775807),
    key INTEGER NOT NULL CHECK (typeof(key) = 'integer' AND key BETWEEN 1 AND 9223372036854775807),
    body BLOB NOT NULL CHECK (typeof(body) = 'blob' AND length(body) BETWEEN 1 AND 33554432),
    PRIMARY KEY (kind, about)
) STRICT, WITHOUT ROWID;
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY CHECK (typeof(number) = 'integer' AND number BETWEEN 1 AND 9223372036854775807),
    target BLOB NOT NULL CHECK (typeof(target) = 'blob' AND length(target) BETWEEN 16 AND 16),
    client BLOB NOT NULL CHECK (typeof(client) = 'blob' AND length(client) BETWEEN 16 AND 16),
    key INTEGER NOT NULL CHECK (typeof(key) = 'integer' AND key BETWEEN 1 AND 9223372036854775807),
    body BLOB NOT NULL CHECK (typeof(body) = 'blob' AND length(body) BETWEEN 1 AND 33554432)
) STRICT;
CREATE INDEX waiting_by_target ON waiting (target);
CREATE INDEX waiting_by_client ON waiting (client);
CREATE INDEX waiting_by_key ON waiting (key);
CREATE TABLE waiting_keys (
    key INTEGER PRIMARY KEY CHECK (typeof(key) = 'integer' AND key BETWEEN 1 AND 9223372036854775807),
    entered INTEGER NOT NULL CHECK (typeof(entered) = 'integer' AND entered BETWEEN 0 AND 9223372036854775807),
    spent INTEGER NOT NULL CHECK (typeof(spent) = 'integer' AND spent BETWEEN 0 AND 1)
) STRICT;
CREATE TABLE intents (
    batch_id TEXT PRIMARY KEY CHECK (typeof(batch_id) = 'text' AND length(batch_id) BETWEEN 1 AND 64 AND length(batch_id) = length(CAST(batch_id AS BLOB))),
    stage TEXT NOT NULL CHECK (typeof(stage) = 'text' AND stage IN ('received', 'accepted', 'removed', 'recomputed', 'completed', 'purged', 'rejected', 'cancelled')),
    key INTEGER NOT NULL CHECK (typeof(key) = 'integer' AND key BETWEEN 1 AND 9223372036854775807),
    body BLOB NOT NULL CHECK (typeof(body) = 'blob' AND length(body) BETWEEN 1 AND 33554432)
) STRICT, WITHOUT ROWID;
CREATE TABLE erased (
    pseudonym BLOB NOT NULL CHECK (typeof(pseudonym) = 'blob' AND length(pseudonym) BETWEEN 16 AND 16),
    sequence INTEGER NOT NULL CHECK (typeof(sequence) = 'integer' AND sequence BETWEEN 0 AND 9223372036854775807),
    request TEXT NOT NULL CHECK (typeof(request) = 'text' AND length(request) BETWEEN 1 AND 64 AND length(request) = length(CAST(request AS BLOB))),
    returned INTEGER NOT NULL CHECK (typeof(returned) = 'integer' AND returned BETWEEN 0 AND 1),
    PRIMARY KEY (pseudonym, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX erased_by_request ON erased (request);
CREATE TABLE keys (
    mac BLOB PRIMARY KEY CHECK (typeof(mac) = 'blob' AND length(mac) BETWEEN 16 AND 16),
    body BLOB NOT NULL CHECK (typeof(body) = 'blob' AND length(body) BETWEEN 16 AND 16),
    requests TEXT NOT NULL CHECK (typeof(requests) = 'text')
) STRICT, WITHOUT ROWID;
CREATE TABLE aliases (
    id TEXT PRIMARY KEY CHECK (typeof(id) = 'text' AND length(id) BETWEEN 1 AND 64 AND length(id) = length(CAST(id AS BLOB))),
    request TEXT NOT NULL CHECK (typeof(request) = 'text' AND length(request) BETWEEN 1 AND 64 AND length(request) = length(CAST(request AS BLOB)))
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time TEXT NOT NULL CHECK (typeof(time) = 'text' AND length(time) BETWEEN 1 AND 64 AND length(time) = length(CAST(time AS BLOB))),
    kind TEXT NOT NULL CHECK (typeof(kind) = 'text' AND length(kind) BETWEEN 1 AND 64 AND length(kind) = length(CAST(kind AS BLOB))),
    about TEXT CHECK (about IS NULL OR (typeof(about) = 'text' AND length(about) BETWEEN 1 AND 64 AND length(about) = length(CAST(about AS BLOB)))),
    body TEXT NOT NULL CHECK (typeof(body) = 'text'),
    hash BLOB NOT NULL CHECK (typeof(hash) = 'blob' AND length(hash) BETWEEN 32 AND 32)
) STRICT;
CREATE INDEX events_by_about ON events (about) WHERE about IS NOT NULL;
CREATE INDEX events_by_kind ON events (kind, sequence);
