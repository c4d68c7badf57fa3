"""Checkpoint in, exported model folder out: readers, quantiser, shard writer, transactional publication."""
