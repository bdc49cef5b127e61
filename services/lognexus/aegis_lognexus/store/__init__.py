"""The store of the lines: rotated files of JSON lines that any collector can follow, an index beside each, queries.

    <folder>/jobs/<job>/00000001.jsonl   one `aegis_proto.logs.StoredLine` per line, in the order of arrival, so in order per worker
    <folder>/jobs/<job>/00000001.idx     one JSON array per block of the file (`blocks.Block`)
    <folder>/jobs/<job>/state.json       up to where it is complete, and the last number of each source (`joining.Progress`)
    <folder>/cursor.json                 up to which message of the stream everything is in the files
    <folder>/sinks/<name>.json           up to where each sink was given the lines

A process may be killed at any write: at start the files are cut behind their last whole line, the index is completed from them, and the stream is
read from the cursor; what was stored already is known by its number and dropped.
"""

from aegis_lognexus.store.query import LONGEST, MAX_BYTES, Asked, Page, ask, workers_of
from aegis_lognexus.store.store import LogStore, StoreSettings

__all__ = ["LONGEST", "MAX_BYTES", "Asked", "LogStore", "Page", "StoreSettings", "ask", "workers_of"]
