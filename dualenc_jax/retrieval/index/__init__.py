"""The encoded corpus on disk: what `encode` writes and `search` reads.

A folder with header.json (see `Header`) and one folder per shard:

  codec.safetensors            the codec of an index of codes.
  shard-00000/embeddings.npy   float [rows, D], or their codes.
  shard-00000/ids.txt          one id per line, in the order of the rows.
  shard-00000/passages.jsonl   one object per line: id, name, location, text.
  shard-00000/offsets.npy      int64 [rows + 1], where these lines start.
  shard-00000/shard.json       rows, and sizes of the files.

Row i of the index is text i of what was encoded; every shard but the last has
`shard_size` rows. `np.load` and a text reader are enough to use the files
elsewhere.
"""

from dualenc_jax.retrieval.index.build import IndexBuild
from dualenc_jax.retrieval.index.header import Header
from dualenc_jax.retrieval.index.index import Index, open_index, RowStore
from dualenc_jax.retrieval.index.shard import Passage

__all__ = [
    'Header', 'Index', 'IndexBuild', 'open_index', 'Passage', 'RowStore',
]
