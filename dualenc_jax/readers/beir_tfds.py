"""The data sets of TFDS's builder `beir`, where they are prepared already."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
from typing import Any

from dualenc_jax.errors import SourceUnavailable
from dualenc_jax.readers.beir_folder import joined
from dualenc_jax.readers.qrels import Qrels
from dualenc_jax.readers.qrels_ids import Row
from dualenc_jax.readers.qrels_source import CORPUS, SPLITS

_BATCH = 1024
_INFO = 'dataset_info.json'
NOTE = (
    "TFDS's builder `beir` keeps one query a passage, so that judgements are"
    ' missing: evaluate on the files of BEIR itself.'
)


def find(name: str, folders: Sequence[pathlib.Path]) -> pathlib.Path | None:
  """The newest version of a BEIR set that TFDS has prepared.

  Args:
    name: of the set, a key of `beir_sets.SETS`.
    folders: TFDS's data_dirs to look in, before the user's own one.
  """
  config = name.replace('-', '_').replace('/', '.')
  own = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  for folder in (*folders, pathlib.Path(own)):
    found = (folder.expanduser() / 'beir' / config).glob(f'*/{_INFO}')
    versions = sorted((path.parent for path in found), key=_version)
    if versions:
      return versions[-1]
  return None


def _version(folder: pathlib.Path) -> list[int]:
  return [int(part) for part in folder.name.split('.') if part.isdigit()]


@dataclasses.dataclass(frozen=True)
class BeirTfds:
  """A prepared data set of TFDS's builder `beir`. Nothing is downloaded.

  Its rows have query, query_id, passage, passage_id, score, and the title in
  passage_metadata; the split `query` has all queries, `passage` the corpus.
  Of the queries of a passage it has only one: fine for training.

  Attributes:
    folder: <data_dir>/beir/<set>/<version>.
    titles: whether titles go in front of texts.
  """

  folder: pathlib.Path
  titles: bool = True

  def splits(self) -> tuple[str, ...]:
    info = json.loads((self.folder / _INFO).read_text('utf-8'))
    found = {split['name'] for split in info['splits']}
    return (*(split for split in SPLITS if split in found), CORPUS)

  def paths(self, split: str) -> list[pathlib.Path]:
    names = ['passage'] if split == CORPUS else [split, 'query', 'passage']
    paths = [self.folder / _INFO]
    for name in names:
      shards = sorted(self.folder.glob(f'*-{name}.*'))
      if not shards:
        raise SourceUnavailable(
            f'{self.folder} has no files of the split {name!r}. Prepare the'
            ' data set with TFDS once more.'
        )
      paths += shards
    return paths

  def passages(self) -> Iterator[Row]:
    for number, row in self._rows('passage'):
      title = ''
      if self.titles:
        title = json.loads(row['passage_metadata']).get('title') or ''
      yield Row(
          f'{self.folder}/passage:{number}',
          row['passage_id'],
          joined(title, row['passage']),
          title,
      )

  def queries(self, split: str) -> Iterator[Row]:
    for number, row in self._rows('query'):
      yield Row(f'{self.folder}/query:{number}', row['query_id'], row['query'])

  def qrels(self, split: str) -> Qrels:
    judgements = (
        (number, (row['query_id'], row['passage_id'], int(row['score'])))
        for number, row in self._rows(split)
    )
    return Qrels.collect(self.folder / split, judgements)

  def comparable(
      self, split: str, published: Mapping[str, int]
  ) -> Mapping[str, int]:
    """Of train, whose judgements are never all there, just the passages."""
    if split != 'train':
      return published
    return {k: v for k, v in published.items() if k == 'passages'}

  def _rows(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1 on, row with strings)."""
    try:
      import tensorflow as tf
      import tensorflow_datasets as tfds
    except ImportError as error:
      raise SourceUnavailable(
          f'{self.folder} is read with TFDS, which cannot be imported here'
          f' ({error}). Install dualenc-jax[data].'
      ) from error
    # TensorFlow would else reserve the memory of GPUs that JAX computes on.
    # It refuses once it runs.
    with contextlib.suppress(RuntimeError):
      tf.config.set_visible_devices([], 'GPU')
    builder = tfds.builder_from_directory(self.folder)
    batches = builder.as_dataset(
        split=split, shuffle_files=False, batch_size=_BATCH
    )
    number = 0
    for batch in tfds.as_numpy(batches):
      columns = list(batch)
      for values in zip(*(batch[name].tolist() for name in columns)):
        number += 1
        yield number, {
            name: v.decode('utf-8') if isinstance(v, bytes) else v
            for name, v in zip(columns, values)
        }
