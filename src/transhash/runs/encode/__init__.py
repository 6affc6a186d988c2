"""Codes on disk, without an index: a folder of shards written here or on Ray, or one file.

A shard is one parquet file, written as a whole: it is there or it is not, so the same call goes on
where an earlier one stopped. Both engines cut the same shards and run the same code on each, so
the bits are the same.
"""
