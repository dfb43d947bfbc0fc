"""Towers as programs that need neither their Python code nor Flax to run.

`write` makes a folder, `Artifact.open` reads one with JAX, NumPy and
SentencePiece alone:

  artifact.json            what it is: format version, lengths, prefixes, the
                           parameters of each tower and their shapes, the size
                           and SHA-256 of every file, provenance.
  vocabulary.model         the SentencePiece model.
  weights.safetensors      the parameters, float32, by name.
  index/                   of `Retriever.save`: the passages, if it had some.
  programs/TOWER-LENGTH.bin
                           what `jax.export` serialises, compressed with zlib:
                           ({name: parameter}, int32 [b, LENGTH] tokens, padded
                           with 0) -> float32 [b, D], for any number of rows b.

An artifact is code: who wrote it decides what its programs compute. They are
compared with their digests and with the shapes in artifact.json, and none that
calls native code is run, but take artifacts from people you trust.

A text goes to the shortest length that holds it. A query tower alone has no
programs and parameters of passages; artifact.json says which passage tower it
belongs to.
"""

from dualenc_jax.retrieval.encoding.artifact.artifact import Artifact
from dualenc_jax.retrieval.encoding.artifact.writer import write

__all__ = ['Artifact', 'write']
