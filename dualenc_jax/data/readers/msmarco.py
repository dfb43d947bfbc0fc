"""MS MARCO passage ranking."""

import dataclasses
import pathlib

from dualenc_jax.data.readers.judged_texts import CORPUS, JudgedTexts, QRELS

_URL = 'https://msmarco.z22.web.core.windows.net/msmarcoranking'
_HINT = (
    f'{_URL}/collectionandqueries.tar.gz (1,058 MB) holds collection.tsv,'
    ' queries.train.tsv, qrels.train.tsv, queries.dev.small.tsv and'
    ' qrels.dev.small.tsv: unpack it there. The test split, TREC Deep Learning'
    f' 2019, is {_URL}/msmarco-test2019-queries.tsv.gz and'
    ' https://trec.nist.gov/data/deep/2019qrels-pass.txt.'
)
# Queries and qrels, by split.
_NAMES = {
    'train': (['queries.train.tsv'], ['qrels.train.tsv']),
    'validation': (['queries.dev.small.tsv'], ['qrels.dev.small.tsv']),
    'test': (
        ['msmarco-test2019-queries.tsv'],
        ['2019qrels-pass.txt', 'qrels.dl19-passage.txt'],
    ),
}


@dataclasses.dataclass(frozen=True)
class MsMarco(JudgedTexts):
  """MS MARCO passage ranking as Microsoft publishes it, unpacked.

  collection.tsv has lines of passage id and passage, queries.*.tsv of query id
  and query, separated by tabs, or in the order of a first line of names, see
  `tables.are_names`; qrels are of any form that `qrels.read` knows.
  All may be .gz, and lie in a folder collectionandqueries/.

  Splits are train, validation (the 6,980 queries of dev.small), test (TREC Deep
  Learning 2019) and corpus.
  """

  task_name = 'msmarco'
  evaluated = 'validation'
  FORM = 'tsv'

  def file_names(self, kind: str, split: str) -> list[str]:
    names = ['collection.tsv']
    if kind != CORPUS:
      names = _NAMES[split][kind == QRELS]
    folders = '', 'collectionandqueries/'
    return [folder + name for folder in folders for name in names]

  def folder_and_hint(self) -> tuple[pathlib.Path | None, str]:
    return self._root(), _HINT
