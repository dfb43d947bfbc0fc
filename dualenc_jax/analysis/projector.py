"""Files of TensorBoard's Embedding Projector.

A folder that `tensorboard --logdir` shows: `projector_config.pbtxt`, a text
proto that names each model's tensor, and for each model a folder with
`tensors.tsv`, a row of numbers a point without a header, and `metadata.tsv`, a
header and a row a point.
"""

from collections.abc import Iterator, Sequence
import io
import pathlib

import numpy as np

from dualenc_jax.analysis.analyse import Analysis
from dualenc_jax.io import files

_LONGEST = 300


def write(
    folder: pathlib.Path, analyses: Sequence[Analysis], most: int
) -> None:
  """Writes the first `most` queries and passages of each model.

  Of a query `rank` is that of its best relevant passage, and `top1_cosine` the
  cosine with its best hit; of a passage both are empty.

  Raises:
    UserError: a file or folder cannot be written.
  """
  entries = []
  for analysis in analyses:
    name, vectors = safe(analysis.name), analysis.vectors
    files.make_folder(folder / name)
    points = np.concatenate([vectors.queries[:most], vectors.passages[:most]])
    tensors = io.StringIO()
    np.savetxt(tensors, points, '%.7g', '\t')
    files.write(folder / name / 'tensors.tsv', tensors.getvalue())
    lines = ''.join('\t'.join(row) + '\n' for row in _rows(analysis, most))
    files.write(folder / name / 'metadata.tsv', lines)
    entries.append(
        'embeddings {\n'
        f'  tensor_name: "{name}"\n'
        f'  tensor_shape: {len(points)}\n'
        f'  tensor_shape: {points.shape[1]}\n'
        f'  tensor_path: "{name}/tensors.tsv"\n'
        f'  metadata_path: "{name}/metadata.tsv"\n'
        '}\n'
    )
  files.write(folder / 'projector_config.pbtxt', ''.join(entries))


def _rows(analysis: Analysis, most: int) -> Iterator[tuple[str, ...]]:
  sample, vectors = analysis.sample, analysis.vectors
  yield 'tower', 'id', 'text', 'rank', 'top1_cosine'
  for i, text in enumerate(sample.query_texts(most)):
    numbers = str(vectors.ranks[i] or ''), f'{vectors.top_cosines[i]:.4f}'
    yield 'query', _line(sample.query_id(i)), _line(text), *numbers
  for i, text in enumerate(sample.passage_texts(most)):
    yield 'passage', _line(sample.passage_id(i)), _line(text), '', ''


def _line(text: str) -> str:
  """A text as one field of one line."""
  return ' '.join(text.split())[:_LONGEST]


def safe(name: str) -> str:
  """A name as part of a path and of a string of the text proto."""
  return ''.join(c if c.isalnum() or c in '-_.' else '_' for c in name)
