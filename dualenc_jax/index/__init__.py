"""The encoded corpus on disk: what `encode` writes and `search` reads.

A folder with header.json (see `Header`) and one folder a shard:

  codec.safetensors            of an index of codes: what they are by.
  shard-00000/embeddings.npy   float [rows, D], or the codes of them.
  shard-00000/ids.txt          an id a line, in the order of the rows.
  shard-00000/passages.jsonl   an object a line: id, name, location, text.
  shard-00000/offsets.npy      int64 [rows + 1], where its lines start.
  shard-00000/shard.json       rows, the first of them, sizes of the files.

Row i of the index is text i of what was encoded; every shard but the last has
`shard_size` rows. `np.load` and a text reader are enough to use the files
elsewhere.
"""

from dualenc_jax.index.build import IndexBuild
from dualenc_jax.index.header import Header
from dualenc_jax.index.index import Index, RowStore
from dualenc_jax.index.shard import Passage

__all__ = ['Header', 'Index', 'IndexBuild', 'Passage', 'RowStore']
