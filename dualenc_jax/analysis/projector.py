"""Files of TensorBoard's Embedding Projector.

A folder that `tensorboard --logdir` shows: `projector_config.pbtxt`, a text
proto that names each model's tensor, and for each model a folder with
`tensors.tsv`, a row of numbers a point without a header, and `metadata.tsv`, a
header and a row a point.
"""

from collections.abc import Sequence
import io
import pathlib

import numpy as np

from dualenc_jax.analysis.sample import Sample
from dualenc_jax.analysis.vectors import Vectors
from dualenc_jax.io import files

_CONFIG = 'projector_config.pbtxt'
_COLUMNS = ('tower', 'id', 'text', 'rank', 'top1_cosine')
_LONGEST = 300


def write(
    folder: pathlib.Path, models: Sequence[Vectors], sample: Sample, most: int
) -> None:
  """Writes the first `most` queries and passages of each model.

  Of a query `rank` is that of its best relevant passage, and `top1_cosine` the
  cosine with its best hit; of a passage both are empty.

  Raises:
    UserError: a file or folder cannot be written.
  """
  entries = []
  for vectors in models:
    name = safe(vectors.name)
    part = folder / name
    files.make_folder(part)
    points = np.concatenate([vectors.queries[:most], vectors.passages[:most]])
    tensors = io.StringIO()
    np.savetxt(tensors, points, '%.7g', '\t')
    files.write(part / 'tensors.tsv', tensors.getvalue())
    lines = map('\t'.join, [_COLUMNS, *_rows(vectors, sample, most)])
    files.write(part / 'metadata.tsv', ''.join(f'{line}\n' for line in lines))
    entries.append(
        'embeddings {\n'
        f'  tensor_name: "{name}"\n'
        f'  tensor_shape: {len(points)}\n'
        f'  tensor_shape: {points.shape[1]}\n'
        f'  tensor_path: "{name}/tensors.tsv"\n'
        f'  metadata_path: "{name}/metadata.tsv"\n'
        '}\n'
    )
  files.write(folder / _CONFIG, ''.join(entries))


def _rows(vectors: Vectors, sample: Sample, most: int) -> list[tuple[str, ...]]:
  texts = sample.retrieval_set.cache.query_texts
  rows = [
      (
          'query',
          _line(sample.query_id(i)),
          _line(texts.text(row)),
          str(vectors.ranks[i] or ''),
          f'{vectors.top_cosines[i]:.4f}',
      )
      for i, row in enumerate(sample.query_rows()[:most])
  ]
  texts = sample.retrieval_set.corpus.cache.passage_texts
  return rows + [
      ('passage', _line(sample.passage_id(i)), _line(texts.text(row)), '', '')
      for i, row in enumerate(sample.passage_rows()[:most])
  ]


def _line(text: str) -> str:
  """A text as one field of one line."""
  return ' '.join(text.split())[:_LONGEST]


def safe(name: str) -> str:
  """A name as part of a path and of a string of the text proto."""
  return ''.join(c if c.isalnum() or c in '-_.' else '_' for c in name)
