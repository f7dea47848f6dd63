"""The persist update log: a shard, whose state is in consensus and whose rows are in blobs."""
