BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'kvproxy.journal','m001_journal','2026-11-22 12:40:09.186464+00:00');
CREATE TABLE names (number integer primary key, name text not null unique);
INSERT INTO "names" VALUES(1,'[4, "tenant", "backend", "api", "model", "messages[0] user"]');
INSERT INTO "names" VALUES(2,'client:ann');
INSERT INTO "names" VALUES(3,'ann');
INSERT INTO "names" VALUES(4,'chat');
INSERT INTO "names" VALUES(5,'m');
INSERT INTO "names" VALUES(6,'http://model:8000');
INSERT INTO "names" VALUES(7,'prefix');
INSERT INTO "names" VALUES(8,'prefix-40%');
INSERT INTO "names" VALUES(9,'x,y');
INSERT INTO "names" VALUES(10,'public');
INSERT INTO "names" VALUES(11,'exact');
INSERT INTO "names" VALUES(12,'hit-exact');
CREATE TABLE prompts (number integer primary key, key blob not null unique, question blob, regions blob, shape integer, entry text, expires float, seconds float, last integer, text text, whole blob);
INSERT INTO "prompts" VALUES(1,X'90B6EE8F85DE1AE1A8589F4BC76D1DD3',X'2752B947F8AC662C',X'FFB20E8E748833B73BE2DD8A4B170E18CF3C2C1A239676FFA6938DE70C1A8E742752B947F8AC662C',1,NULL,NULL,2.0,2,'a',NULL);
INSERT INTO "prompts" VALUES(2,X'A6785D56528A1F42D66F08034B511DC7',X'DE8D6E52F08F4CD4',X'FFB20E8E748833B73BE2DD8A4B170E18CF3C2C1A239676FFA6938DE70C1A8E74DE8D6E52F08F4CD4',1,NULL,NULL,2.0,3,'b',NULL);
CREATE TABLE records (number integer primary key, time float not null, request text not null, tenant integer not null, client integer, api integer not null, model integer not null, upstream integer, status integer not null, layer integer not null, reason integer not null, changed integer, gone float, against integer, prompt integer, entry, near, similarity float, score float, error float, guard integer, prompt_tokens integer, predicted_tokens integer, reused_tokens integer, completion_tokens integer, exact_us integer, semantic_us integer, backend_us integer, first_us integer, total_us integer, tags integer);
INSERT INTO "records" VALUES(1,1795000000.0,'miss',2,3,4,5,6,200,7,8,NULL,NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,100,NULL,40,10,NULL,NULL,2000000,2000000,2000000,9);
INSERT INTO "records" VALUES(2,1795000001.0,'hit',2,3,4,5,NULL,200,11,12,NULL,NULL,NULL,1,X'3E1378D761E3433ABE2EB2761770C1CB',NULL,NULL,NULL,NULL,NULL,100,NULL,NULL,10,999,NULL,NULL,999,999,9);
INSERT INTO "records" VALUES(3,1795000002.0,'other',10,NULL,4,5,NULL,200,7,8,NULL,NULL,NULL,2,NULL,NULL,NULL,NULL,NULL,NULL,100,NULL,40,10,NULL,NULL,2000000,2000000,2000000,NULL);
CREATE TABLE tombstones (key blob primary key, why text not null, time float not null) without rowid;
CREATE TABLE totals (day text not null, tenant text not null, model text not null, layer text not null, tag text not null, requests integer not null, prompt_tokens integer not null, completion_tokens integer not null, reused_tokens integer not null, saved_seconds float not null, expected_wrong float not null, first_seconds float not null, seconds float not null, primary key (day, tenant, model, layer, tag)) without rowid;
INSERT INTO "totals" VALUES('2026-11-18','client:ann','m','exact','',1,100,10,0,1.99900000000343425199e+00,0.0,0.000999999996565748,0.000999999996565748);
INSERT INTO "totals" VALUES('2026-11-18','client:ann','m','exact','x',1,100,10,0,1.99900000000343425199e+00,0.0,0.000999999996565748,0.000999999996565748);
INSERT INTO "totals" VALUES('2026-11-18','client:ann','m','exact','y',1,100,10,0,1.99900000000343425199e+00,0.0,0.000999999996565748,0.000999999996565748);
INSERT INTO "totals" VALUES('2026-11-18','client:ann','m','prefix','',1,100,10,40,0.0,0.0,2.0,2.0);
INSERT INTO "totals" VALUES('2026-11-18','client:ann','m','prefix','x',1,100,10,40,0.0,0.0,2.0,2.0);
INSERT INTO "totals" VALUES('2026-11-18','client:ann','m','prefix','y',1,100,10,40,0.0,0.0,2.0,2.0);
INSERT INTO "totals" VALUES('2026-11-18','public','m','prefix','',1,100,10,40,0.0,0.0,2.0,2.0);
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
CREATE INDEX prompts_question on prompts (question) where question is not null;
CREATE INDEX tombstones_time on tombstones (time);
CREATE VIEW requests as select r.number as number, r.time as time, r.request as request_id, (select name from names where number = r.tenant) as tenant, (select name from names where number = r.client) as client, (select name from names where number = r.api) as api, (select name from names where number = r.model) as model, (select name from names where number = r.upstream) as upstream, r.status as status, (select name from names where number = r.layer) as layer, (select name from names where number = r.reason) as reason, (select name from names where number = r.changed) as changed, r.gone as gone, case typeof(r.entry) when 'blob' then lower(hex(r.entry)) else r.entry end as entry, case typeof(r.near) when 'blob' then lower(hex(r.near)) else r.near end as near, r.similarity as similarity, r.score as score, r.error as error, (select name from names where number = r.guard) as guard, r.prompt_tokens as prompt_tokens, r.predicted_tokens as predicted_tokens, r.reused_tokens as reused_tokens, r.completion_tokens as completion_tokens, r.exact_us / 1000.0 as exact_ms, r.semantic_us / 1000.0 as semantic_ms, r.backend_us / 1000.0 as backend_ms, r.first_us / 1000.0 as first_ms, r.total_us / 1000.0 as total_ms, (select name from names where number = r.tags) as tags, case typeof(p.key) when 'blob' then lower(hex(p.key)) else p.key end as key, r.prompt as prompt, r.against as against, p.text as text from records r left join prompts p on p.number = r.prompt;
COMMIT;
