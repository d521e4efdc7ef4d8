CREATE TABLE requests (
    id TEXT PRIMARY KEY CHECK (typeof(id) = 'text' AND length(id) BETWEEN 1 AND 64 AND length(id) = length(CAST(id AS BLOB))),
    batch_id TEXT CHECK (batch_id IS NULL OR (typeof(batch_id) = 'text' AND length(batch_id) BETWEEN 1 AND 64 AND length(batch_id) = length(CAST(batch_id AS BLOB)))),
    place INTEGER NOT NULL CHECK (typeof(place) = 'integer' AND place BETWEEN 0 AND 9223372036854775807),
    level TEXT NOT NULL CHECK (typeof(level) = 'text' AND level IN ('sample', 'client')),
    basis TEXT NOT NULL CHECK (typeof(basis) = 'text' AND basis IN ('exogenous', 'model-informed', 'unknown')),
    state TEXT NOT NULL CHECK (typeof(state) = 'text' AND state IN ('received', 'accepted', 'removed', 'recomputed', 'completed', 'purged', 'rejected', 'cancelled')),
    received TEXT NOT NULL CHECK (typeof(received) = 'text' AND length(received) BETWEEN 1 AND 64 AND length(received) = length(CAST(received AS BLOB))),
    deadline TEXT CHECK (deadline IS NULL OR (typeof(deadline) = 'text' AND length(deadline) BETWEEN 1 AND 64 AND length(deadline) = length(CAST(deadline AS BLOB)))),
    reason TEXT CHECK (reason IS NULL OR (typeof(reason) = 'text')),
    first_changed_step INTEGER CHECK (first_changed_step IS NULL OR (typeof(first_changed_step) = 'integer' AND first_changed_step BETWEEN 1 AND 9223372036854775807)),
    recomputed_steps INTEGER CHECK (recomputed_steps IS NULL OR (typeof(recomputed_steps) = 'integer' AND recomputed_steps BETWEEN 0 AND 9223372036854775807)),
    steps_alone INTEGER CHECK (steps_alone IS NULL OR (typeof(steps_alone) = 'integer' AND steps_alone BETWEEN 0 AND 9223372036854775807)),
    guarantee TEXT CHECK (guarantee IS NULL OR (typeof(guarantee) = 'text' AND guarantee IN ('law-and-path', 'path'))),
    model_round INTEGER CHECK (model_round IS NULL OR (typeof(model_round) = 'integer' AND model_round BETWEEN 0 AND 9223372036854775807)),
    model_digest TEXT CHECK (model_digest IS NULL OR (typeof(model_digest) = 'text' AND length(model_digest) BETWEEN 1 AND 64 AND length(model_digest) = length(CAST(model_digest AS BLOB)) AND length(model_digest) = 64 AND model_digest NOT GLOB '*[^0-9a-f]*')),
    model_mac BLOB CHECK (model_mac IS NULL OR (typeof(model_mac) = 'blob' AND length(model_mac) BETWEEN 16 AND 16)),
    state_digest TEXT CHECK (state_digest IS NULL OR (typeof(state_digest) = 'text' AND length(state_digest) BETWEEN 1 AND 64 AND length(state_digest) = length(CAST(state_digest AS BLOB)) AND length(state_digest) = 64 AND state_digest NOT GLOB '*[^0-9a-f]*'))
) WITHOUT ROWID;
CREATE TABLE waiting (
    request TEXT PRIMARY KEY CHECK (typeof(request) = 'text' AND length(request) BETWEEN 1 AND 64 AND length(request) = length(CAST(request AS BLOB))),
    client NOT NULL CHECK ((typeof(client) = 'integer' AND client BETWEEN 0 AND 9223372036854775807) OR (typeof(client) = 'text' AND (CAST(CAST(client AS INTEGER) AS TEXT) <> client OR CAST(client AS INTEGER) < 0))),
    sample CHECK (sample IS NULL OR ((typeof(sample) = 'integer' AND sample BETWEEN 0 AND 9223372036854775807) OR (typeof(sample) = 'text' AND (CAST(CAST(sample AS INTEGER) AS TEXT) <> sample OR CAST(sample AS INTEGER) < 0))))
) WITHOUT ROWID;
CREATE TABLE intents (
    batch_id TEXT PRIMARY KEY CHECK (typeof(batch_id) = 'text' AND length(batch_id) BETWEEN 1 AND 64 AND length(batch_id) = length(CAST(batch_id AS BLOB))),
    stage TEXT NOT NULL CHECK (typeof(stage) = 'text' AND stage IN ('received', 'accepted', 'removed', 'recomputed', 'completed', 'purged', 'rejected', 'cancelled')),
    body TEXT NOT NULL CHECK (typeof(body) = 'text')
) WITHOUT ROWID;
CREATE TABLE erased (
    pseudonym BLOB NOT NULL CHECK (typeof(pseudonym) = 'blob' AND length(pseudonym) BETWEEN 16 AND 16),
    sequence INTEGER NOT NULL CHECK (typeof(sequence) = 'integer' AND sequence BETWEEN 0 AND 9223372036854775807),
    request TEXT NOT NULL CHECK (typeof(request) = 'text' AND length(request) BETWEEN 1 AND 64 AND length(request) = length(CAST(request AS BLOB))),
    returned INTEGER NOT NULL CHECK (typeof(returned) = 'integer' AND returned BETWEEN 0 AND 1),
    PRIMARY KEY (pseudonym, sequence)
) WITHOUT ROWID;
CREATE TABLE keys (
    mac BLOB PRIMARY KEY CHECK (typeof(mac) = 'blob' AND length(mac) BETWEEN 16 AND 16),
    body BLOB NOT NULL CHECK (typeof(body) = 'blob' AND length(body) BETWEEN 16 AND 16),
    requests TEXT NOT NULL CHECK (typeof(requests) = 'text')
) WITHOUT ROWID;
CREATE TABLE aliases (
    id TEXT PRIMARY KEY CHECK (typeof(id) = 'text' AND length(id) BETWEEN 1 AND 64 AND length(id) = length(CAST(id AS BLOB))),
    request TEXT NOT NULL CHECK (typeof(request) = 'text' AND length(request) BETWEEN 1 AND 64 AND length(request) = length(CAST(request AS BLOB)))
) WITHOUT ROWID;

CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    time TEXT NOT NULL CHECK (typeof(time) = 'text' AND length(time) BETWEEN 1 AND 64 AND length(time) = length(CAST(time AS BLOB))),
    kind TEXT NOT NULL CHECK (typeof(kind) = 'text' AND length(kind) BETWEEN 1 AND 64 AND length(kind) = length(CAST(kind AS BLOB))),
    body TEXT NOT NULL CHECK (typeof(body) = 'text'),
    hash BLOB NOT NULL CHECK (typeof(hash) = 'blob' AND length(hash) BETWEEN 32 AND 32)
);
