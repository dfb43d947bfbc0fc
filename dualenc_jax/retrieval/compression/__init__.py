"""Codecs: embeddings in fewer bytes, and the search through them.

  codec = compression.spec('opq:96').fit(vectors)
  search = make_search(compression.Coded(codec, codec.encode(vectors)), ids)

`specs` has their names. Codes on disk are in `index`, losses that train codes
in `losses`.
"""

from dualenc_jax.retrieval.compression.codec import Codec, Coded
from dualenc_jax.retrieval.compression.specs import FLOATS, Spec, spec

__all__ = ['Codec', 'Coded', 'FLOATS', 'Spec', 'spec']
