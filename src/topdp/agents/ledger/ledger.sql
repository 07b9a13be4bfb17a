-- The tables of a ledger of format 5.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE charges (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TABLE outbox (
    receiver TEXT, round INTEGER, digest TEXT NOT NULL, body BLOB,
    PRIMARY KEY (receiver, round));
CREATE TABLE inbox (
    sender TEXT, round INTEGER, digest TEXT NOT NULL, body BLOB, applied INTEGER,
    PRIMARY KEY (sender, round));
CREATE TABLE peers (
    name TEXT PRIMARY KEY, quarantined TEXT, quarantined_for TEXT, finished INTEGER, told INTEGER)
WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), round INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE pairs (
    id TEXT PRIMARY KEY, partner TEXT NOT NULL, role TEXT NOT NULL, status TEXT NOT NULL,
    own_round INTEGER NOT NULL, partner_round INTEGER, told INTEGER NOT NULL DEFAULT 0, applied INTEGER);
CREATE TABLE statements (
    number INTEGER PRIMARY KEY, author TEXT NOT NULL, run TEXT NOT NULL, about TEXT NOT NULL,
    text TEXT NOT NULL, signature TEXT NOT NULL, UNIQUE (author, run, about));
CREATE TABLE notes (
    number INTEGER PRIMARY KEY, charges INTEGER NOT NULL, place TEXT NOT NULL, key TEXT NOT NULL, value);
CREATE TABLE delivered (receiver TEXT PRIMARY KEY, round INTEGER NOT NULL) WITHOUT ROWID;
-- Partial indexes hold only what a round looks up: a lookup in round 8,000 takes as long as in round 1.
CREATE INDEX outbox_waiting ON outbox (receiver, round) WHERE body IS NOT NULL;
CREATE INDEX inbox_bodies ON inbox (round) WHERE body IS NOT NULL;
CREATE INDEX pairs_prepared ON pairs (id) WHERE status = 'prepared';
CREATE INDEX pairs_ready ON pairs (id) WHERE status = 'committed' AND applied IS NULL;
CREATE INDEX pairs_untold ON pairs (id) WHERE status = 'committed' AND told = 0;
