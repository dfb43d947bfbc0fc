"""The official files of MS MARCO passage ranking."""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import pathlib

from dualenc_jax.readers import qrels, rows
from dualenc_jax.readers.qrels_reader import check_file_names, CORPUS, SPLITS
from dualenc_jax.readers.rows import BadRow
from dualenc_jax.readers.texts_by_id import Row

URL = 'https://msmarco.z22.web.core.windows.net/msmarcoranking'
HINT = (
    f'{URL}/collectionandqueries.tar.gz (1,058 MB) holds collection.tsv,'
    ' queries.train.tsv, qrels.train.tsv, queries.dev.small.tsv and'
    ' qrels.dev.small.tsv: unpack it there. The test split, TREC Deep Learning'
    f' 2019, is {URL}/msmarco-test2019-queries.tsv.gz and'
    ' https://trec.nist.gov/data/deep/2019qrels-pass.txt. A folder in'
    " BEIR's layout (corpus.jsonl, ...) serves, too."
)
TRIPLES = 'triples'
TRIPLES_HINT = (
    f'{URL}/triples.train.small.tar.gz (7,931 MB) holds it: unpack it there.'
)
# Counts of the catalogue of ir_datasets (ir-datasets.com/msmarco-passage.html).
# BEIR's copy has ten judgements fewer in train.
_PASSAGES = {'passages': 8_841_823}
PUBLISHED: Mapping[str, Mapping[str, int]] = {
    'train': {'queries': 502_939, 'judgements': 532_761, **_PASSAGES},
    'validation': {'queries': 6_980, 'judgements': 7_437, **_PASSAGES},
    'test': {'queries': 43, 'judgements': 9_260, **_PASSAGES},
    CORPUS: _PASSAGES,
    TRIPLES: {'triples': 39_780_811},
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    'collection': ('collection.tsv',),
    'train_queries': ('queries.train.tsv',),
    'train_qrels': ('qrels.train.tsv',),
    'validation_queries': ('queries.dev.small.tsv',),
    'validation_qrels': ('qrels.dev.small.tsv',),
    'test_queries': ('msmarco-test2019-queries.tsv',),
    'test_qrels': ('2019qrels-pass.txt', 'qrels.dl19-passage.txt'),
    TRIPLES: ('triples.train.small.tsv',),
}
_FOLDERS = ('', 'collectionandqueries/')


@dataclasses.dataclass(frozen=True)
class MsMarcoFiles:
  """MS MARCO passage ranking as Microsoft publishes it, unpacked.

  collection.tsv has lines of passage id and passage, queries.*.tsv of query id
  and query, separated by tabs; qrels are of any form that `qrels.read` knows.
  All may be .gz, and lie in a folder collectionandqueries/.

  Attributes:
    folder: where the files are, None if the user has not given one.
    files: names of files below it in place of the usual ones, by 'collection',
      'train_queries', 'train_qrels', the same of validation and test, and
      'triples'.
    strict: as of `rows.parsed`.
  """

  folder: pathlib.Path | None
  files: Mapping[str, str] = dataclasses.field(default_factory=dict)
  strict: bool = True

  def __post_init__(self):
    check_file_names(self.files, tuple(_NAMES))

  def has(self, name: str) -> bool:
    """Whether a file is there, by its key of `files`."""
    return self.folder is not None and any(
        (self.folder / file).is_file() for file in self._names(name)
    )

  def find(self, name: str, hint: str = HINT) -> pathlib.Path:
    """Path of a file; raises SourceUnavailable."""
    return rows.find(self.folder, self._names(name), 'msmarco', hint)

  def splits(self) -> tuple[str, ...]:
    found = [split for split in SPLITS if self.has(f'{split}_qrels')]
    return (*found, *([CORPUS] if self.has('collection') else []))

  def paths(self, split: str) -> list[pathlib.Path]:
    names = ['collection']
    if split != CORPUS:
      names = [f'{split}_qrels', f'{split}_queries', 'collection']
    return [self.find(name) for name in names]

  def passages(self) -> Iterator[Row]:
    return self._rows('collection', _parse_passage)

  def queries(self, split: str) -> Iterator[Row]:
    return self._rows(f'{split}_queries', _parse_query)

  def qrels(self, split: str) -> qrels.Qrels:
    return qrels.read(self.find(f'{split}_qrels'), self.strict)

  def comparable(
      self, split: str, published: Mapping[str, int]
  ) -> Mapping[str, int]:
    """Files that the user names are not the published ones."""
    kept = dict(published)
    if TRIPLES in self.files:
      kept.pop('triples', None)
    if 'collection' in self.files:
      kept.pop('passages', None)
    if f'{split}_qrels' in self.files:
      kept.pop('queries', None)
      kept.pop('judgements', None)
    return kept

  def _names(self, name: str) -> list[str]:
    if name in self.files:
      return [self.files[name]]
    return [
        f'{folder}{file}{suffix}'
        for folder in _FOLDERS
        for file in _NAMES[name]
        for suffix in ('', '.gz')
    ]

  def _rows(
      self, name: str, parse: Callable[[bytes], tuple[str, str]]
  ) -> Iterator[Row]:
    path = self.find(name)
    for number, row in rows.parsed(path, parse, self.strict):
      yield Row(f'{path}:{number}', *row)


def _parse_passage(line: bytes) -> tuple[str, str]:
  name, text = rows.tsv_cells(line, ('passage id', 'passage'))
  _check_id(name)
  return name, text.strip()


def _parse_query(line: bytes) -> tuple[str, str]:
  name, text = rows.tsv_cells(line, ('query id', 'query'))
  _check_id(name)
  rows.check_text('query', text)
  return name, text


def _check_id(name: str) -> None:
  if not name.strip():
    raise BadRow('the id is empty')
