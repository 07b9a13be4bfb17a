-- The tables of a site budget.
-- `books` identifies the ledger of a run; `name` identifies a data set.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sets (name BLOB PRIMARY KEY, source BLOB NOT NULL, records INTEGER NOT NULL);
CREATE TABLE members (record BLOB, name BLOB, PRIMARY KEY (record, name)) WITHOUT ROWID;
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, books TEXT NOT NULL, name BLOB NOT NULL, federation TEXT NOT NULL,
    agent TEXT NOT NULL, folder TEXT NOT NULL, begun TEXT NOT NULL, guarantee TEXT NOT NULL,
    adjacency TEXT NOT NULL, delta REAL NOT NULL, epsilon REAL, final INTEGER NOT NULL DEFAULT 0,
    charges INTEGER NOT NULL DEFAULT 0, UNIQUE (books, name));
CREATE TABLE limits (number INTEGER PRIMARY KEY, time TEXT NOT NULL, epsilon REAL, delta REAL);
