-- What could not be stored as it was. `batches_unfit` are batches that failed on their own data: what was in them, as
-- far as it can be shown, and why.
CREATE TABLE batches_unfit (
    place INTEGER PRIMARY KEY,
    session TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    number INTEGER NOT NULL,
    error TEXT NOT NULL,
    doc BLOB NOT NULL,
    at REAL NOT NULL
);

-- Bytes that came where text was expected and are not UTF-8, each under the name that stands in their place.
CREATE TABLE attachments (
    session TEXT NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (session, name)
) WITHOUT ROWID;

-- Written to find out whether writes succeed again.
CREATE TABLE attempts (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    at REAL NOT NULL
);
