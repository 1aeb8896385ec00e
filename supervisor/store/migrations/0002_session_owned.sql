-- Process trees that belong to their session and not to a run: what has to be taken up at a start. And receipts of
-- Stops that found no run and wait for such trees.

ALTER TABLE processes ADD COLUMN owner TEXT NOT NULL DEFAULT 'run';
CREATE INDEX processes_of_sessions ON processes (session) WHERE owner = 'session' AND state <> 'ended';

CREATE TABLE pending_receipts (
    session TEXT NOT NULL,
    receipt_id TEXT NOT NULL,
    doc BLOB NOT NULL,
    PRIMARY KEY (session, receipt_id)
) WITHOUT ROWID;
