CREATE TABLE strandline_schema (
	part VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (part)
);
CREATE INDEX strandline_schema_whole ON strandline_schema (part, version);
CREATE TABLE strandline_clock (
	id INTEGER NOT NULL, 
	time BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX strandline_clock_whole ON strandline_clock (id, time);
CREATE TABLE strandline_fence (
	id INTEGER NOT NULL, 
	environment VARCHAR NOT NULL, 
	deploy_generation BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	catalog_version BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX strandline_fence_whole ON strandline_fence (id, environment, deploy_generation, epoch, catalog_version);
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
CREATE INDEX metastorage_head_whole ON metastorage_head (id, revision, time, forgotten);
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
CREATE INDEX metastorage_lease_whole ON metastorage_lease (name, holder, expires, token);
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
CREATE INDEX txn_whole ON txn (txn_id, state, begin_time, commit_time, catalog_version, last_heartbeat, user, host, agent, read_only, timeout_ms);
CREATE TABLE txn_reserved (
	id INTEGER NOT NULL, 
	txn_id BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX txn_reserved_whole ON txn_reserved (id, txn_id);
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
	table_id INTEGER NOT NULL, 
	next BIGINT NOT NULL, 
	PRIMARY KEY (table_id)
);
CREATE INDEX next_write_id_whole ON next_write_id (table_id, next);
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
	hold_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	kind TEXT NOT NULL, 
	owner TEXT NOT NULL, 
	time BIGINT NOT NULL, 
	expires BIGINT NOT NULL, 
	user TEXT
);
CREATE INDEX hold_by_time ON hold (time);
CREATE INDEX hold_whole ON hold (hold_id, kind, owner, time, expires, user);
CREATE INDEX hold_by_expiry ON hold (expires);
CREATE INDEX hold_by_kind ON hold (kind, expires);
CREATE TABLE hold_watermark (
	id INTEGER NOT NULL, 
	time BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX hold_watermark_whole ON hold_watermark (id, time);
CREATE TABLE lock_request (
	lock_id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	txn_id BIGINT, 
	owner TEXT NOT NULL, 
	user TEXT NOT NULL, 
	host TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	last_heartbeat BIGINT NOT NULL, 
	timeout_ms BIGINT NOT NULL, 
	acquired_at BIGINT, 
	blocked_by BIGINT
);
CREATE INDEX lock_request_by_txn ON lock_request (txn_id);
CREATE INDEX lock_request_by_heartbeat ON lock_request (last_heartbeat);
CREATE INDEX lock_request_whole ON lock_request (lock_id, txn_id, owner, user, host, agent, last_heartbeat, timeout_ms, acquired_at, blocked_by);
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
CREATE INDEX lock_component_whole ON lock_component (lock_id, number, schema, "table", partition, mode);
CREATE TABLE stash (
	id INTEGER NOT NULL, 
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
CREATE INDEX stash_collection_whole ON stash_collection (id, name, pruned);
CREATE TABLE stash_row (
	version BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	collection INTEGER NOT NULL, 
	time BIGINT NOT NULL, 
	diff SMALLINT NOT NULL, 
	checksum BIGINT NOT NULL, 
	"key" BLOB NOT NULL, 
	value BLOB NOT NULL, 
	PRIMARY KEY (version, number)
);
CREATE TABLE stash_appended (
	collection INTEGER NOT NULL, 
	version BIGINT NOT NULL, 
	number BIGINT NOT NULL, 
	time BIGINT NOT NULL, 
	checksum BIGINT NOT NULL, 
	"key" BLOB NOT NULL, 
	value BLOB NOT NULL, 
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
CREATE INDEX strandline_catalog_log_whole ON strandline_catalog_log (id, name, address, former, sealed_epoch);
CREATE TABLE strandline_place (
	id INTEGER NOT NULL, 
	path VARCHAR NOT NULL, 
	inode BIGINT NOT NULL, 
	names VARCHAR NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX strandline_place_whole ON strandline_place (id, path, inode, names);
CREATE TABLE store_row (
	row_id INTEGER NOT NULL, 
	table_id BIGINT NOT NULL, 
	kind INTEGER NOT NULL, 
	bucket INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	write_id BIGINT NOT NULL, 
	body BLOB NOT NULL, 
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
CREATE INDEX store_sequence_whole ON store_sequence (id, row_id);
CREATE TABLE table_location (
	table_id INTEGER NOT NULL, 
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
CREATE INDEX partition_move_whole ON partition_move (table_id, location, up_to_row, target, target_row);
CREATE TABLE unfinished_move (
	table_id BIGINT NOT NULL, 
	location TEXT NOT NULL, 
	up_to_row BIGINT NOT NULL, 
	target TEXT NOT NULL, 
	PRIMARY KEY (table_id, location, up_to_row)
);
CREATE INDEX unfinished_move_whole ON unfinished_move (table_id, location, up_to_row, target);
CREATE TABLE cleaned_table (
	table_id INTEGER NOT NULL, 
	up_to BIGINT NOT NULL, 
	PRIMARY KEY (table_id)
);
CREATE INDEX cleaned_table_whole ON cleaned_table (table_id, up_to);
CREATE TABLE notification_log (
	event_id INTEGER NOT NULL, 
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
CREATE INDEX notification_sequence_whole ON notification_sequence (id, event_id, projected_version, projected_entries);
