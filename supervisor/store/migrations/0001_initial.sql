-- Documents are JSON in BLOBs: JSON, so that a person can read them; BLOBs, so that what was encoded is what is
-- stored. Columns beside them are what is searched for.

CREATE TABLE events (
    session TEXT NOT NULL,
    seq INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    run_id TEXT,
    kind TEXT NOT NULL,
    data BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;

CREATE TABLE sessions (
    session TEXT NOT NULL PRIMARY KEY,
    parked INTEGER NOT NULL,
    doc BLOB NOT NULL
) WITHOUT ROWID;

-- `place` is the order of creation. A run's id is looked up without its session too.
CREATE TABLE runs (
    place INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    receipt_id TEXT NOT NULL,
    settled INTEGER NOT NULL,
    doc BLOB NOT NULL,
    UNIQUE (run_id, session)
);
CREATE INDEX runs_of_session ON runs (session, place);
CREATE INDEX runs_unsettled ON runs (session, place) WHERE settled = 0;

CREATE TABLE calls (
    session TEXT NOT NULL,
    run_id TEXT NOT NULL,
    call_id TEXT NOT NULL,
    doc BLOB NOT NULL,
    PRIMARY KEY (session, run_id, call_id)
) WITHOUT ROWID;

CREATE TABLE processes (
    session TEXT NOT NULL,
    process_id TEXT NOT NULL,
    state TEXT NOT NULL,
    doc BLOB NOT NULL,
    PRIMARY KEY (session, process_id)
) WITHOUT ROWID;
CREATE INDEX processes_not_ended ON processes (session) WHERE state <> 'ended';

CREATE TABLE receipts (
    place INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    receipt_id TEXT NOT NULL,
    run_id TEXT,
    doc BLOB NOT NULL,
    UNIQUE (receipt_id, session)
);
CREATE INDEX receipts_of_run ON receipts (run_id, session);

CREATE TABLE waiting (
    session TEXT NOT NULL,
    message_id TEXT NOT NULL,
    place INTEGER NOT NULL,
    doc BLOB NOT NULL,
    PRIMARY KEY (session, message_id)
) WITHOUT ROWID;

-- `place` counts a session's requests, so that the oldest are found without counting them.
CREATE TABLE requests (
    session TEXT NOT NULL,
    place INTEGER NOT NULL,
    request_id TEXT NOT NULL,
    at REAL NOT NULL,
    doc BLOB NOT NULL,
    PRIMARY KEY (session, place),
    UNIQUE (session, request_id)
) WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests (session, at);

-- The last batch of each incarnation of a session: what makes a batch that is sent again harmless.
CREATE TABLE batches (
    place INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    number INTEGER NOT NULL,
    UNIQUE (session, incarnation)
);
