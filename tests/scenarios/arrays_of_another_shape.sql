-- An array of more dimensions or another lower bound is NULL in `current`, its text in history, counted; `text` keeps it all.
-- capture: item, kept
-- target: kept.a text

CREATE TABLE item (id int PRIMARY KEY, a int[]);
CREATE TABLE kept (id int PRIMARY KEY, a int[]);
-- step: run
INSERT INTO item VALUES (1, '{1,2}'), (2, '{{1,2},{3,4}}'), (3, '[0:1]={7,8}');
INSERT INTO kept TABLE item;
-- step: run
-- expect: current item (id, a)
--   1 | 1 2
--   2 | ∅
--   3 | ∅
-- expect: history item (id, _text['a'])
--   1 | ∅
--   2 | {{1,2},{3,4}}
--   3 | [0:1]={7,8}
-- expect: converted item (a=2)
-- expect: current kept (id, a)
--   1 | {1,2}
--   2 | {{1,2},{3,4}}
--   3 | [0:1]={7,8}
