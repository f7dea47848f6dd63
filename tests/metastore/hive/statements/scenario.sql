# Databases

CREATE DATABASE s1 COMMENT 'first' WITH DBPROPERTIES ('a' = '1', 'b' = '2');
CREATE DATABASE s1;
CREATE DATABASE IF NOT EXISTS s1;
CREATE DATABASE `a-b`;
DESCRIBE DATABASE EXTENDED s1;
ALTER DATABASE s1 SET DBPROPERTIES ('b' = '3', 'c' = '4');
COMMENT ON DATABASE s1 IS 'the first';
DESCRIBE DATABASE EXTENDED s1;
CREATE DATABASE s2 LOCATION '{warehouse}/far';
ALTER DATABASE s2 SET LOCATION '{warehouse}/farther';
DESCRIBE DATABASE s2;
DESCRIBE DATABASE nosuch;
SHOW DATABASES LIKE 's*';
USE nosuch;
USE s1;
SELECT current_database(); -- soak
DROP DATABASE nosuch;
DROP DATABASE IF EXISTS nosuch;
SHOW TABLES IN nosuch;

# Data source tables

CREATE TABLE planes (Id INT COMMENT 'the key', kind STRING, built DATE) USING parquet COMMENT 'what flies' TBLPROPERTIES ('k' = 'v');
CREATE TABLE planes (a INT) USING parquet;
CREATE TABLE IF NOT EXISTS planes (a INT) USING parquet;
DESCRIBE EXTENDED planes;
SHOW CREATE TABLE planes;
INSERT INTO planes VALUES (1, 'jet', DATE '2026-01-02'), (2, 'prop', NULL);
INSERT INTO planes (kind, Id) VALUES ('glider', 3); -- soak
SELECT * FROM planes ORDER BY Id; -- soak
INSERT OVERWRITE planes SELECT Id, upper(kind), built FROM VALUES (1, 'jet', DATE '2026-01-02'), (2, 'prop', NULL) AS rows (Id, kind, built); -- soak
SELECT kind, Id FROM planes WHERE Id > 1; -- soak
SELECT nosuch FROM planes;
INSERT INTO planes VALUES (1);
ALTER TABLE planes ADD COLUMNS (seats SMALLINT COMMENT 'of passengers', engine STRUCT<maker: STRING, Power: DECIMAL(9, 2)>);
ALTER TABLE planes ADD COLUMNS (SEATS INT);
ALTER TABLE planes ALTER COLUMN kind COMMENT 'its kind';
ALTER TABLE planes ALTER COLUMN Id TYPE STRING;
ALTER TABLE planes RENAME COLUMN kind TO sort;
ALTER TABLE planes DROP COLUMN kind;
DESCRIBE planes;
SHOW COLUMNS IN planes;
SELECT Id, seats, engine.power FROM planes ORDER BY Id; -- soak
ALTER TABLE planes SET TBLPROPERTIES ('k' = 'w', 'owner.team' = 'air');
ALTER TABLE planes UNSET TBLPROPERTIES ('k');
ALTER TABLE planes UNSET TBLPROPERTIES IF EXISTS ('k');
COMMENT ON TABLE planes IS 'everything that flies';
SHOW TBLPROPERTIES planes;
SHOW TBLPROPERTIES planes ('owner.team');
ALTER TABLE planes RENAME TO s1.aircraft;
ALTER TABLE aircraft RENAME TO s2.aircraft;
SHOW TABLES;
SHOW TABLE EXTENDED LIKE 'air*';
SELECT count(*) FROM planes;
TRUNCATE TABLE aircraft;
SELECT count(*) FROM aircraft; -- soak
CREATE TABLE copies USING parquet AS SELECT id, id % 2 = 0 AS even, CAST(id AS DECIMAL(5, 1)) AS d, array(id) AS a, map('k', id) AS m FROM range(3);
SELECT * FROM copies ORDER BY id; -- soak
DESCRIBE copies;
CREATE TABLE likes LIKE copies;
SHOW CREATE TABLE likes;
CREATE TABLE defaults (a INT, b INT DEFAULT 1 + 1, c CHAR(3), v VARCHAR(5), t TIMESTAMP_NTZ, i INT NOT NULL) USING parquet;
DESCRIBE EXTENDED defaults;
INSERT INTO defaults (a, c, i) VALUES (1, 'x', 0); -- soak
INSERT INTO defaults (a, v, i) VALUES (1, 'longer than five', 0);
SELECT a, b, c, length(c), t FROM defaults; -- soak
ALTER TABLE defaults ALTER COLUMN b SET DEFAULT 9;
ALTER TABLE defaults ALTER COLUMN b DROP DEFAULT;
ALTER TABLE defaults ALTER COLUMN i DROP NOT NULL;
CREATE TABLE lines USING json AS SELECT 1 AS a, 'x' AS `b c`;
SELECT * FROM lines; -- soak
CREATE TABLE sheet (a INT, b STRING) USING csv OPTIONS (header = 'true', sep = ';') LOCATION '{warehouse}/sheet';
INSERT INTO sheet VALUES (1, 'x;y'); -- soak
SELECT * FROM sheet; -- soak
ALTER TABLE sheet SET SERDEPROPERTIES ('sep' = ',');
DESCRIBE EXTENDED sheet;
CREATE TABLE bucketed (a INT, b STRING) USING parquet CLUSTERED BY (a) SORTED BY (b) INTO 4 BUCKETS;
DESCRIBE EXTENDED bucketed;
CREATE TABLE `odd name` (a INT) USING parquet;
CREATE TABLE nothing (v VOID, i INTERVAL) USING parquet;
CREATE TABLE twice (a INT, A STRING) USING parquet;

# Hive tables

CREATE TABLE words (Word STRING COMMENT 'in lower case', n INT) STORED AS TEXTFILE TBLPROPERTIES ('x' = 'y');
DESCRIBE EXTENDED words;
SHOW CREATE TABLE words;
INSERT INTO words VALUES ('a', 1), ('b', NULL);
SELECT * FROM words ORDER BY word; -- soak
SHOW TBLPROPERTIES words ('numFiles');
CREATE TABLE cells (a INT, b ARRAY<STRING>, c MAP<STRING, INT>) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' COLLECTION ITEMS TERMINATED BY ':' MAP KEYS TERMINATED BY '=' STORED AS TEXTFILE;
INSERT INTO cells SELECT 1, array('x', 'y'), map('k', 2); -- soak
SELECT * FROM cells; -- soak
SHOW CREATE TABLE cells;
CREATE TABLE orc_words STORED AS ORC AS SELECT 'a' AS word, 1 AS n, DATE '2026-01-02' AS d, CAST(1.5 AS DECIMAL(4, 2)) AS e;
SELECT * FROM orc_words; -- soak
ALTER TABLE orc_words ADD COLUMNS (more STRING);
SELECT word, more FROM orc_words; -- soak
ALTER TABLE words CHANGE COLUMN n n INT COMMENT 'how often';
ALTER TABLE words REPLACE COLUMNS (word STRING);
DESCRIBE words;
ALTER TABLE words PARTITION (a = 1) SET LOCATION '{warehouse}/far';
CREATE EXTERNAL TABLE outside (a INT) STORED AS PARQUET LOCATION '{warehouse}/outside';
INSERT OVERWRITE outside VALUES (7);
ALTER TABLE outside SET LOCATION '{warehouse}/far';
SELECT a FROM outside; -- soak
DESCRIBE EXTENDED outside;
DROP TABLE outside;
CREATE TABLE outside (a INT) USING parquet LOCATION '{warehouse}/outside';
SELECT a FROM outside; -- soak
CREATE TABLE serdes (a STRING) ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' WITH SERDEPROPERTIES ('separatorChar' = ';') STORED AS TEXTFILE;
SHOW CREATE TABLE serdes;
ALTER TABLE serdes SET SERDE 'org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe' WITH SERDEPROPERTIES ('k' = 'v');
SHOW CREATE TABLE serdes;
CREATE TABLE quoted (a INT, b STRING) ROW FORMAT SERDE 'org.apache.hadoop.hive.serde2.OpenCSVSerde' STORED AS TEXTFILE;
ALTER TABLE quoted SET TBLPROPERTIES ('k' = 'v');
SHOW TBLPROPERTIES quoted ('k');
SHOW TABLES;
SHOW TABLES LIKE 'o*|words';

# Partitions

CREATE TABLE sales (amount INT, day DATE, shop STRING) USING parquet PARTITIONED BY (day, shop);
INSERT INTO sales VALUES (1, DATE '2026-01-01', 'a'), (2, DATE '2026-01-02', 'b'), (3, DATE '2026-01-02', NULL), (4, DATE '2026-01-03', 'c d/e=f');
SHOW PARTITIONS sales;
SHOW PARTITIONS sales PARTITION (day = '2026-01-02');
SHOW PARTITIONS sales PARTITION (nosuch = 1);
SELECT amount, shop FROM sales WHERE day >= DATE '2026-01-02' ORDER BY amount;
SELECT amount FROM sales WHERE shop IS NULL OR shop LIKE 'c%' ORDER BY amount;
SELECT amount FROM sales WHERE shop IN ('a', 'b') AND day <> DATE '2026-01-01'; -- soak
INSERT OVERWRITE sales PARTITION (day = DATE '2026-01-01', shop = 'a') SELECT 10;
INSERT INTO sales PARTITION (day = DATE '2026-01-04', shop) SELECT 11, 'z';
ALTER TABLE sales ADD PARTITION (day = '2026-01-05', shop = 'q') PARTITION (day = '2026-01-06', shop = 'q') LOCATION '{warehouse}/shop_q';
ALTER TABLE sales ADD PARTITION (day = '2026-01-05', shop = 'q');
ALTER TABLE sales ADD IF NOT EXISTS PARTITION (day = '2026-01-05', shop = 'q');
DESCRIBE EXTENDED sales PARTITION (day = '2026-01-05', shop = 'q');
ALTER TABLE sales PARTITION (day = '2026-01-05', shop = 'q') RENAME TO PARTITION (day = '2026-01-07', shop = 'r');
DESCRIBE EXTENDED sales PARTITION (day = '2026-01-07', shop = 'r');
ALTER TABLE sales PARTITION (day = '2026-01-07', shop = 'r') SET LOCATION '{warehouse}/shop_r';
DESCRIBE EXTENDED sales PARTITION (day = '2026-01-07', shop = 'r');
ALTER TABLE sales DROP PARTITION (day = '2026-01-06', shop = 'q');
ALTER TABLE sales DROP PARTITION (day = '2026-01-06', shop = 'q');
ALTER TABLE sales DROP IF EXISTS PARTITION (day = '2026-01-06', shop = 'q');
SHOW TABLE EXTENDED LIKE 'sales' PARTITION (day = '2026-01-01', shop = 'a');
SHOW PARTITIONS sales;
SELECT amount, day, shop FROM sales ORDER BY amount; -- soak
ALTER TABLE sales ADD COLUMNS (more INT);
SELECT sum(amount), count(more) FROM sales WHERE day < DATE '2026-01-03'; -- soak
TRUNCATE TABLE sales PARTITION (day = '2026-01-02');
MSCK REPAIR TABLE sales;
SHOW PARTITIONS copies;
SHOW PARTITIONS words;
CREATE TABLE logs (line STRING) PARTITIONED BY (year INT, host STRING) STORED AS TEXTFILE;
INSERT INTO logs PARTITION (year = 2026, host = 'x') VALUES ('one'), ('two');
SET hive.exec.dynamic.partition.mode = nonstrict;
INSERT INTO logs SELECT 'three', 2027, 'y y';
RESET hive.exec.dynamic.partition.mode;
SELECT * FROM logs WHERE year > 2026; -- soak
SELECT line FROM logs WHERE host LIKE '%y' OR year = 2026 ORDER BY line;
INSERT OVERWRITE logs PARTITION (year = 2026, host = 'x') VALUES ('four');
ALTER TABLE logs PARTITION (year = 2026, host = 'x') RENAME TO PARTITION (year = 2025, host = 'w');
ALTER TABLE logs PARTITION (year = 2025, host = 'w') SET SERDEPROPERTIES ('k' = 'v');
SHOW PARTITIONS logs;
DESCRIBE EXTENDED logs PARTITION (year = 2025, host = 'w');
ALTER TABLE logs DROP PARTITION (year = 2027, host = 'y y');
SELECT line, year FROM logs; -- soak
CREATE TABLE cuts (a INT, b STRING) PARTITIONED BY (p INT) ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' STORED AS TEXTFILE;
INSERT INTO cuts PARTITION (p = 1) VALUES (1, 'one');
ALTER TABLE cuts SET SERDEPROPERTIES ('field.delim' = ';', 'serialization.format' = ';');
INSERT INTO cuts PARTITION (p = 2) VALUES (2, 'two');
SELECT * FROM cuts ORDER BY p;

# Views

CREATE VIEW jets (key COMMENT 'of the plane', kind) COMMENT 'some' TBLPROPERTIES ('k' = 'v') AS SELECT id, even FROM copies WHERE even;
CREATE VIEW jets AS SELECT 1;
CREATE VIEW IF NOT EXISTS jets AS SELECT 1;
SELECT * FROM jets ORDER BY key;
DESCRIBE EXTENDED jets;
SHOW CREATE TABLE jets;
CREATE OR REPLACE VIEW jets AS SELECT id AS key FROM copies;
ALTER VIEW jets AS SELECT id AS key, 'x' AS x FROM s1.copies WHERE id > 0;
SELECT j.key, c.even FROM jets j JOIN copies c ON j.key = c.id ORDER BY j.key; -- soak
ALTER VIEW jets SET TBLPROPERTIES ('l' = 'w');
ALTER VIEW jets UNSET TBLPROPERTIES ('l');
ALTER VIEW jets RENAME TO views;
SHOW VIEWS;
SHOW VIEWS LIKE 'j*';
INSERT INTO views VALUES (1);
DROP TABLE views;
DROP VIEW copies;
DROP VIEW views;
SELECT * FROM views;
CREATE VIEW broken AS SELECT * FROM nosuch;

# Functions

CREATE FUNCTION up AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFUpper';
CREATE FUNCTION s1.up AS 'a.b.C';
CREATE FUNCTION IF NOT EXISTS up AS 'a.b.C';
SELECT up('a'), s1.up('b');
DESCRIBE FUNCTION up;
SHOW USER FUNCTIONS;
SHOW USER FUNCTIONS LIKE 's1.u*';
CREATE OR REPLACE FUNCTION up AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFLower';
DROP FUNCTION up;
DROP FUNCTION up;
DROP FUNCTION IF EXISTS up;
SELECT s1.up('a');
CREATE FUNCTION area(x DOUBLE, y DOUBLE) RETURNS DOUBLE RETURN x * y;
SELECT area(2, 3); -- soak

# Statistics

ANALYZE TABLE copies COMPUTE STATISTICS NOSCAN;
ANALYZE TABLE copies COMPUTE STATISTICS; -- soak
ANALYZE TABLE copies COMPUTE STATISTICS FOR COLUMNS id, even, d;
DESCRIBE EXTENDED copies;
DESCRIBE EXTENDED copies id;
ANALYZE TABLE orc_words COMPUTE STATISTICS FOR ALL COLUMNS; -- soak
DESCRIBE EXTENDED orc_words word; -- soak
ANALYZE TABLE sales PARTITION (day = '2026-01-01') COMPUTE STATISTICS;
DESCRIBE EXTENDED sales PARTITION (day = '2026-01-01', shop = 'a');
ANALYZE TABLE logs PARTITION (year, host) COMPUTE STATISTICS NOSCAN;
ANALYZE TABLES IN s1 COMPUTE STATISTICS NOSCAN;
ANALYZE TABLE nosuch COMPUTE STATISTICS;

# The end

DROP TABLE nosuch;
DROP TABLE IF EXISTS nosuch;
DROP TABLE copies PURGE;
DROP DATABASE s1;
USE default;
DROP DATABASE s1 CASCADE;
DROP DATABASE s2;
SHOW DATABASES LIKE 's*';
