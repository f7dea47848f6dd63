"""The persist update log: a shard with its state in consensus and its rows in blobs."""
