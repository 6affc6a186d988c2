"""Codes of collections too large for one sitting: a folder of shards, written here or on Ray.

A shard is one parquet file, written as a whole: it is there or it is not, so the same call goes on
where an earlier one stopped. Both engines cut the same shards and run the same code on each, so
the bits are the same.
"""

from transhash.runs.encode.job import Outcome, encode_shards
from transhash.runs.encode.shards import Job, read_job, read_shards, shard_path, write_codes

__all__ = [
    "Job",
    "Outcome",
    "encode_shards",
    "read_job",
    "read_shards",
    "shard_path",
    "write_codes",
]
