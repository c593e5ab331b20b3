-- The key's columns stand in the index in another order than in the table; one of them changes alone.

CREATE TABLE line (note text, item int, amount int, shop text, PRIMARY KEY (shop, item));
-- step: run

INSERT INTO line VALUES ('n', 1, 10, '1'), ('n', 2, 20, '1'), ('n', 1, 30, '2'), ('n', 12, 1, '1'), ('n', 2, 1, '11');
-- step: run
UPDATE line SET amount = 99 WHERE shop = '1' AND item = 2;
UPDATE line SET item = 3 WHERE shop = '1' AND item = 1;
UPDATE line SET shop = '3' WHERE shop = '2';
DELETE FROM line WHERE shop = '11';
-- step: run
-- expect: current line (shop, item, amount)
--   1 | 2  | 99
--   1 | 3  | 10
--   1 | 12 | 1
--   3 | 1  | 30
