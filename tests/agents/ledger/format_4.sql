BEGIN TRANSACTION;
CREATE TABLE charges (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, hash TEXT NOT NULL);
INSERT INTO "charges" VALUES(0,'{"charge": 0.25, "digests": {"bob": "973b4d62c59d6f69ce8121c6f648dff98725e0732dd02f58425244db3f3619f5", "eve": "973b4d62c59d6f69ce8121c6f648dff98725e0732dd02f58425244db3f3619f5"}, "information": 0.1, "kind": "release", "number": 0, "round": 0, "state": "d19ffb904395eada15ce069ce68c9ae4098a131c064b3b9b78e685d9bbe6187b", "total": 0.25, "worst_case": 0.5}','15521d445cc22932e8efabc2cc7a5a3052eb6ea7c7349cda6fb13a58ee06748f');
INSERT INTO "charges" VALUES(1,'{"charge": 0.25, "digests": {"bob": "96e3051150089bfa9f3564e2a94c62ed4e956174403606a91477120d2ed06895", "eve": "96e3051150089bfa9f3564e2a94c62ed4e956174403606a91477120d2ed06895"}, "information": 0.1, "kind": "release", "number": 1, "round": 1, "state": "2780e2d008eba4f8b30ac02f5ec0a66ce5285a29bb2d1a6c0164ea2c7dd17544", "total": 0.5, "worst_case": 1.0}','3faf0807e4146bbece9785a554d7faa1f02fe2f8f3e615931bb330e8e48711b1');
INSERT INTO "charges" VALUES(2,'{"charge": 0.25, "digests": {"bob": "39f826c6d26fd42c47de8eeefc04bced7c5edce321bbb6152d7fb525cd934c84", "eve": "39f826c6d26fd42c47de8eeefc04bced7c5edce321bbb6152d7fb525cd934c84"}, "information": 0.1, "kind": "release", "number": 2, "round": 2, "state": "a130a9a4785f14da3d233bb2bdedab62780db176af033fdb9462fda102bfedd6", "total": 0.75, "worst_case": 1.5}','b85257281fcc7dd91049c2f569da9132854ef9d3321979909be70522aedf4221');
INSERT INTO "charges" VALUES(3,'{"charge": 0.25, "digests": {"bob": "bb858e06516117b563ef929766e61ee93586a94d89312442c7259dad2e3c3a02", "eve": "bb858e06516117b563ef929766e61ee93586a94d89312442c7259dad2e3c3a02"}, "information": 0.1, "kind": "release", "number": 3, "round": 3, "state": "437248afd69ac74d33bcd0df352017f077b9bf3e79443915f1336b931a268ed3", "total": 1.0, "worst_case": 2.0}','373a186314b43b2025ba2a32c617ea2e4c1abe60862b528fd166b5aaa2337c53');
INSERT INTO "charges" VALUES(4,'{"charge": 0.125, "digests": {}, "information": 0.0, "kind": "late", "number": 4, "round": 3, "state": "437248afd69ac74d33bcd0df352017f077b9bf3e79443915f1336b931a268ed3", "total": 1.125, "worst_case": 2.0}','a88950fd998a72932be7cc51cb82f4b1c344b716f9d044dfc55cd66ac0746bd0');
INSERT INTO "charges" VALUES(5,'{"charge": 0.25, "digests": {"bob": "4527180a926cb08181faffde56c7a572180cdcfc4144b0ca4c523b296f9b9729"}, "information": 0.1, "kind": "release", "number": 5, "round": 4, "state": "8dcd5901529429313d9b3b1e50aaa6e3c0a7e91ba78f77ebe0aaaa4605c0f28c", "total": 1.375, "worst_case": 2.5}','5df0901b5706d57d6d29fa50cfe418da88d04b93af3da0e2e644043b87d2256d');
INSERT INTO "charges" VALUES(6,'{"charge": 0.25, "digests": {"bob": "2b33eaf16f944777f4e6a16f550fa44b207b4907a212e1f1bea0cbab58ae1982"}, "information": 0.1, "kind": "release", "number": 6, "round": 5, "state": "91967d2f16de894ecf8a4c023a7376e59f138a47c3602f17fd3829cd2853618b", "total": 1.625, "worst_case": 3.0}','5189eeff787d5e816dafa93976d29aab65de143ef7bf48bad8f986810d83be22');
INSERT INTO "charges" VALUES(7,'{"charge": 0.0, "digests": {"bob": "f7b28b095d41a103727fcc37dce7df5ba5af6808e14b0083d72466a030df9056"}, "information": 0.0, "kind": "noise", "number": 7, "round": 6, "state": "1eebeac8986deb7505353b2929e351a99588d9703ffb5ce9b0b173f8c7b816b9", "total": 1.625, "worst_case": 3.0}','f2e662354fcde88e5c02bcb131c9451c0dc9cb904d2a451fd81971016f805439');
INSERT INTO "charges" VALUES(8,'{"charge": 0.0, "digests": {}, "information": 0.0, "kind": "skip", "number": 8, "round": 9, "state": "1eebeac8986deb7505353b2929e351a99588d9703ffb5ce9b0b173f8c7b816b9", "total": 1.625, "worst_case": 3.0}','a5e2e0dcf9a35adfeaf7da59fc048817a37ea49fee10cd4289ad157d3ab20c9f');
CREATE TABLE inbox (
    sender TEXT, round INTEGER, digest TEXT NOT NULL, body BLOB, applied INTEGER,
    PRIMARY KEY (sender, round));
INSERT INTO "inbox" VALUES('bob',0,'f866c015c699efaa1217821ae6ca8ad5890dd4a3fe54f65dd4510a6c0958b233',NULL,1);
INSERT INTO "inbox" VALUES('eve',0,'0f059c7143945417713c3265dbb6a2e67cf4e9a2de3f78e60a8973fd373d393c',NULL,1);
INSERT INTO "inbox" VALUES('bob',1,'3968cfa1ef688016f135838a8bdd6a571455ac1fa93bd16316ad2a824d2fad7e',NULL,2);
INSERT INTO "inbox" VALUES('eve',1,'2484449c94e543e45f8db208d41d2ed2c632b77a26c2c17a347d632a3d253c83',NULL,2);
INSERT INTO "inbox" VALUES('bob',2,'1c163a3f67fb68317292977815506d9904d60bad58b41388c219c7941a12ff38',NULL,3);
INSERT INTO "inbox" VALUES('eve',2,'3da7d974dd2184e7666f580afd43c09a59ae503c4837a074b32c6503c17b0964',NULL,3);
INSERT INTO "inbox" VALUES('bob',3,'f2131cab58fd38a2a2f4befecbe0125d7705bad65f74e46e406c625d41fb3c6a',NULL,4);
INSERT INTO "inbox" VALUES('eve',3,'7e265ce98cc87e7f12aa30f5bf8efc7f15afb0885d114c058977b1b8fd8f6022',X'6576652033',NULL);
INSERT INTO "inbox" VALUES('bob',4,'bfbda53ede1ad6f2dfcecc1052e65ec5226c3e02fca50de507549d4ae4d458a3',NULL,5);
INSERT INTO "inbox" VALUES('bob',5,'75e2fa0cd2e0c2085dee03e60ac3e1414810db8177ed94448cb0fc768cb82b8a',NULL,6);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('agent','ada');
INSERT INTO "meta" VALUES('departed','round 4: nothing from eve');
INSERT INTO "meta" VALUES('federation','federation');
INSERT INTO "meta" VALUES('format','4');
INSERT INTO "meta" VALUES('guarantee','adaptive');
INSERT INTO "meta" VALUES('order','order of the records');
INSERT INTO "meta" VALUES('partners','planned');
INSERT INTO "meta" VALUES('stopped','6');
INSERT INTO "meta" VALUES('whoever_is_missing','False');
CREATE TABLE outbox (
    receiver TEXT, round INTEGER, digest TEXT NOT NULL, body BLOB,
    PRIMARY KEY (receiver, round));
INSERT INTO "outbox" VALUES('bob',0,'973b4d62c59d6f69ce8121c6f648dff98725e0732dd02f58425244db3f3619f5',NULL);
INSERT INTO "outbox" VALUES('eve',0,'973b4d62c59d6f69ce8121c6f648dff98725e0732dd02f58425244db3f3619f5',NULL);
INSERT INTO "outbox" VALUES('bob',1,'96e3051150089bfa9f3564e2a94c62ed4e956174403606a91477120d2ed06895',NULL);
INSERT INTO "outbox" VALUES('eve',1,'96e3051150089bfa9f3564e2a94c62ed4e956174403606a91477120d2ed06895',NULL);
INSERT INTO "outbox" VALUES('bob',2,'39f826c6d26fd42c47de8eeefc04bced7c5edce321bbb6152d7fb525cd934c84',NULL);
INSERT INTO "outbox" VALUES('eve',2,'39f826c6d26fd42c47de8eeefc04bced7c5edce321bbb6152d7fb525cd934c84',X'726F772032');
INSERT INTO "outbox" VALUES('bob',3,'bb858e06516117b563ef929766e61ee93586a94d89312442c7259dad2e3c3a02',NULL);
INSERT INTO "outbox" VALUES('eve',3,'bb858e06516117b563ef929766e61ee93586a94d89312442c7259dad2e3c3a02',X'726F772033');
INSERT INTO "outbox" VALUES('bob',4,'4527180a926cb08181faffde56c7a572180cdcfc4144b0ca4c523b296f9b9729',X'726F772034');
INSERT INTO "outbox" VALUES('bob',5,'2b33eaf16f944777f4e6a16f550fa44b207b4907a212e1f1bea0cbab58ae1982',X'726F772035');
INSERT INTO "outbox" VALUES('bob',6,'f7b28b095d41a103727fcc37dce7df5ba5af6808e14b0083d72466a030df9056',X'726F772036');
CREATE TABLE pairs (
    id TEXT PRIMARY KEY, partner TEXT NOT NULL, role TEXT NOT NULL, status TEXT NOT NULL,
    own_round INTEGER NOT NULL, partner_round INTEGER, told INTEGER NOT NULL DEFAULT 0, applied INTEGER);
CREATE TABLE peers (
    name TEXT PRIMARY KEY, quarantined TEXT, quarantined_for TEXT, finished INTEGER, told INTEGER)
WITHOUT ROWID;
INSERT INTO "peers" VALUES('eve','sent two different rows for round 3','EQUIVOCATION',1,NULL);
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), round INTEGER NOT NULL, body BLOB NOT NULL);
INSERT INTO "state" VALUES(1,9,X'73746174652036');
CREATE TABLE statements (
    number INTEGER PRIMARY KEY, author TEXT NOT NULL, run TEXT NOT NULL, about TEXT NOT NULL,
    text TEXT NOT NULL, signature TEXT NOT NULL, UNIQUE (author, run, about));
INSERT INTO "statements" VALUES(1,'ada','run','without eve','4','00');
COMMIT;
