CREATE TABLE strandline_schema (
	part VARCHAR NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (part)
);
CREATE TABLE strandline_clock (
	id INTEGER NOT NULL,
	time BIGINT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE strandline_fence (
	id INTEGER NOT NULL,
	environment VARCHAR NOT NULL,
	deploy_generation BIGINT NOT NULL,
	epoch BIGINT NOT NULL,
	catalog_version BIGINT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE metastorage (
	"key" VARCHAR NOT NULL,
	revision BIGINT NOT NULL,
	time BIGINT NOT NULL,
	value BLOB NOT NULL,
	PRIMARY KEY ("key")
);
CREATE INDEX metastorage_by_revision ON metastorage (revision, "key");
CREATE TABLE metastorage_head (
	id INTEGER NOT NULL,
	revision BIGINT NOT NULL,
	time BIGINT NOT NULL,
	forgotten BIGINT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE metastorage_deletion (
	revision BIGINT NOT NULL,
	"key" VARCHAR NOT NULL,
	PRIMARY KEY (revision, "key")
)
 WITHOUT ROWID;
CREATE TABLE metastorage_lease (
	name VARCHAR NOT NULL,
	holder VARCHAR,
	expires BIGINT NOT NULL,
	token BIGINT NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE txn (
	txn_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	state INTEGER NOT NULL,
	begin_time BIGINT NOT NULL,
	commit_time BIGINT,
	catalog_version BIGINT NOT NULL,
	last_heartbeat BIGINT NOT NULL,
	user TEXT NOT NULL,
	host TEXT NOT NULL,
	agent TEXT NOT NULL,
	read_only BOOLEAN NOT NULL,
	timeout_ms BIGINT NOT NULL
);
CREATE INDEX txn_by_commit_time ON txn (commit_time);
CREATE INDEX txn_by_state ON txn (state, begin_time);
CREATE TABLE txn_write_id (
	table_id BIGINT NOT NULL,
	write_id BIGINT NOT NULL,
	txn_id BIGINT NOT NULL,
	commit_time BIGINT,
	PRIMARY KEY (table_id, write_id)
);
CREATE UNIQUE INDEX txn_write_id_by_txn ON txn_write_id (txn_id, table_id);
CREATE INDEX txn_write_id_by_commit_time ON txn_write_id (table_id, commit_time);
CREATE TABLE next_write_id (
	table_id BIGINT NOT NULL,
	next BIGINT NOT NULL,
	PRIMARY KEY (table_id)
);
CREATE TABLE txn_footprint (
	row_id BIGINT NOT NULL,
	txn_id BIGINT NOT NULL,
	table_id BIGINT NOT NULL,
	commit_time BIGINT,
	PRIMARY KEY (row_id, txn_id)
);
CREATE INDEX txn_footprint_by_commit_time ON txn_footprint (commit_time);
CREATE INDEX txn_footprint_by_txn ON txn_footprint (txn_id);
CREATE TABLE hold (
	hold_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	kind TEXT NOT NULL,
	owner TEXT NOT NULL,
	time BIGINT NOT NULL,
	expires BIGINT NOT NULL
);
CREATE INDEX hold_by_expiry ON hold (expires);
CREATE TABLE hold_watermark (
	id INTEGER NOT NULL,
	time BIGINT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE store_row (
	row_id BIGINT NOT NULL,
	table_id BIGINT NOT NULL,
	kind INTEGER NOT NULL,
	bucket INTEGER NOT NULL,
	name TEXT NOT NULL,
	write_id BIGINT NOT NULL,
	body BLOB NOT NULL,
	PRIMARY KEY (row_id)
);
CREATE INDEX store_row_by_write ON store_row (table_id, write_id);
CREATE INDEX store_row_by_name ON store_row (table_id, kind, name);
CREATE TABLE store_removal (
	row_id BIGINT NOT NULL,
	write_id BIGINT NOT NULL,
	table_id BIGINT NOT NULL,
	PRIMARY KEY (row_id, write_id)
);
CREATE INDEX store_removal_by_write ON store_removal (table_id, write_id);
CREATE TABLE store_sequence (
	id INTEGER NOT NULL,
	row_id BIGINT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE table_location (
	table_id BIGINT NOT NULL,
	location TEXT NOT NULL,
	PRIMARY KEY (table_id)
);
CREATE TABLE notification_log (
	event_id BIGINT NOT NULL,
	time BIGINT NOT NULL,
	verb TEXT NOT NULL,
	catalog_version BIGINT,
	txn_id BIGINT,
	table_id BIGINT,
	write_id BIGINT,
	body BLOB NOT NULL,
	PRIMARY KEY (event_id)
);
CREATE TABLE notification_sequence (
	id INTEGER NOT NULL,
	event_id BIGINT NOT NULL,
	projected_version BIGINT NOT NULL,
	projected_entries INTEGER NOT NULL,
	PRIMARY KEY (id)
);
