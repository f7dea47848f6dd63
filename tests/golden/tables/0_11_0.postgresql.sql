CREATE TABLE strandline_schema (
	part VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (part)
);
CREATE TABLE strandline_clock (
	id SERIAL NOT NULL, 
	time BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE strandline_fence (
	id SERIAL NOT NULL, 
	environment VARCHAR NOT NULL, 
	deploy_generation BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	catalog_version BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE metastorage (
	key VARCHAR COLLATE "C" NOT NULL, 
	revision BIGINT NOT NULL, 
	time BIGINT NOT NULL, 
	value BYTEA NOT NULL, 
	PRIMARY KEY (key)
);
CREATE INDEX metastorage_by_revision ON metastorage (revision, key);
CREATE TABLE metastorage_head (
	id SERIAL NOT NULL, 
	revision BIGINT NOT NULL, 
	time BIGINT NOT NULL, 
	forgotten BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE metastorage_deletion (
	revision BIGINT NOT NULL, 
	key VARCHAR COLLATE "C" NOT NULL, 
	PRIMARY KEY (revision, key)
);
CREATE TABLE metastorage_lease (
	name VARCHAR COLLATE "C" NOT NULL, 
	holder VARCHAR, 
	expires BIGINT NOT NULL, 
	token BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE txn (
	txn_id BIGSERIAL NOT NULL, 
	state INTEGER NOT NULL, 
	begin_time BIGINT NOT NULL, 
	commit_time BIGINT, 
	catalog_version BIGINT NOT NULL, 
	last_heartbeat BIGINT NOT NULL, 
	"user" TEXT NOT NULL, 
	host TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	read_only BOOLEAN NOT NULL, 
	timeout_ms BIGINT NOT NULL, 
	PRIMARY KEY (txn_id)
);
CREATE INDEX txn_by_commit_time ON txn (commit_time);
CREATE INDEX txn_by_state ON txn (state, begin_time);
CREATE TABLE txn_reserved (
	id INTEGER NOT NULL, 
	txn_id BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE txn_write_id (
	table_id BIGINT NOT NULL, 
	write_id BIGINT NOT NULL, 
	txn_id BIGINT NOT NULL, 
	commit_time BIGINT, 
	PRIMARY KEY (table_id, write_id)
);
CREATE UNIQUE INDEX txn_write_id_by_txn ON txn_write_id (txn_id, table_id);
CREATE INDEX txn_write_id_by_commit_time ON txn_write_id (table_id, commit_time);
CREATE INDEX IF NOT EXISTS txn_write_id_pending ON txn_write_id (txn_id) WHERE commit_time IS NULL;
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
CREATE INDEX txn_footprint_by_txn_and_table ON txn_footprint (txn_id, table_id);
CREATE INDEX txn_footprint_by_commit_time ON txn_footprint (commit_time);
CREATE TABLE hold (
	hold_id BIGSERIAL NOT NULL, 
	kind TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	time BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	"user" TEXT, 
	PRIMARY KEY (hold_id)
);
CREATE INDEX hold_by_time ON hold (time);
CREATE INDEX hold_by_expiry ON hold (expires);
CREATE INDEX hold_by_kind ON hold (kind, expires);
CREATE TABLE hold_watermark (
	id INTEGER NOT NULL, 
	time BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE lock_request (
	lock_id BIGSERIAL NOT NULL, 
	txn_id BIGINT, 
	owner TEXT NOT NULL, 
	"user" TEXT NOT NULL, 
	host TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	last_heartbeat BIGINT NOT NULL, 
	timeout_ms BIGINT NOT NULL, 
	acquired_at BIGINT, 
	blocked_by BIGINT, 
	PRIMARY KEY (lock_id)
);
CREATE INDEX lock_request_by_txn ON lock_request (txn_id);
CREATE INDEX lock_request_by_heartbeat ON lock_request (last_heartbeat);
CREATE TABLE lock_component (
	lock_id BIGINT NOT NULL, 
	number INTEGER NOT NULL, 
	schema TEXT NOT NULL, 
	"table" TEXT, 
	partition TEXT, 
	mode INTEGER NOT NULL, 
	PRIMARY KEY (lock_id, number)
);
CREATE INDEX lock_component_by_schema ON lock_component (schema, "table");
CREATE TABLE stash (
	id SERIAL NOT NULL, 
	upper BIGINT NOT NULL, 
	time BIGINT NOT NULL, 
	since BIGINT NOT NULL, 
	since_time BIGINT NOT NULL, 
	deploy_generation BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	objects BIGINT NOT NULL, 
	sum BIGINT NOT NULL, 
	collections BIGINT NOT NULL, 
	checksum BIGINT NOT NULL, 
	nonce BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE stash_collection (
	id INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	pruned BIGINT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (name)
);
CREATE TABLE stash_row (
	version BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	collection INTEGER NOT NULL, 
	time BIGINT NOT NULL, 
	diff SMALLINT NOT NULL, 
	checksum BIGINT NOT NULL, 
	key BYTEA NOT NULL, 
	value BYTEA NOT NULL, 
	PRIMARY KEY (version, number)
);
CREATE TABLE stash_appended (
	collection INTEGER NOT NULL, 
	version BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	time BIGINT NOT NULL, 
	checksum BIGINT NOT NULL, 
	key BYTEA NOT NULL, 
	value BYTEA NOT NULL, 
	PRIMARY KEY (collection, version, number)
);
CREATE TABLE strandline_catalog_log (
	id INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	address VARCHAR NOT NULL, 
	former VARCHAR NOT NULL, 
	sealed_epoch BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE strandline_place (
	id INTEGER NOT NULL, 
	path VARCHAR NOT NULL, 
	inode BIGINT NOT NULL, 
	names VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE store_row (
	row_id BIGINT NOT NULL, 
	table_id BIGINT NOT NULL, 
	kind INTEGER NOT NULL, 
	bucket INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	write_id BIGINT NOT NULL, 
	body BYTEA NOT NULL, 
	PRIMARY KEY (row_id)
);
CREATE INDEX store_row_by_name ON store_row (table_id, kind, name, row_id);
CREATE INDEX store_row_by_write ON store_row (table_id, write_id);
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
CREATE INDEX table_location_by_place ON table_location (location);
CREATE TABLE partition_move (
	table_id BIGINT NOT NULL, 
	location TEXT NOT NULL, 
	up_to_row BIGINT NOT NULL, 
	target TEXT NOT NULL, 
	target_row BIGINT, 
	PRIMARY KEY (table_id, location, up_to_row)
);
CREATE TABLE unfinished_move (
	table_id BIGINT NOT NULL, 
	location TEXT NOT NULL, 
	up_to_row BIGINT NOT NULL, 
	target TEXT NOT NULL, 
	PRIMARY KEY (table_id, location, up_to_row)
);
CREATE TABLE cleaned_table (
	table_id BIGINT NOT NULL, 
	up_to BIGINT NOT NULL, 
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
	body BYTEA NOT NULL, 
	PRIMARY KEY (event_id)
);
CREATE TABLE notification_sequence (
	id INTEGER NOT NULL, 
	event_id BIGINT NOT NULL, 
	projected_version BIGINT NOT NULL, 
	projected_entries INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
