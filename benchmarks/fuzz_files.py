"""Small good files of every kind that is read, and what reads them."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import gzip
import itertools
import json
import pathlib
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.evaluation import teacher_scores, trec
from dualenc_jax.readers import (
  Beir,
  Documents,
  MsMarco,
  MultiReQA,
  OpenNQ,
  Pairs,
  qrels,
  rows,
  Texts,
)
from dualenc_jax.readers.hard_negatives import HardNegatives

_STRICT = (True, False)
TEXTS = 'a first text', 'another; it is longer', 'naïve 文', 'and a last one'


@dataclasses.dataclass(frozen=True)
class Reader:
  """Files and what reads all that is in them.

  Attributes:
    files: any of them may be changed.
    read: reads them; raises UserError.
  """

  files: list[pathlib.Path]
  read: Callable[[], Any]


def write(
    folder: pathlib.Path, files: Mapping[str, Any]
) -> list[pathlib.Path]:
  """Writes text, or objects one a line; packed where the name ends in .gz."""
  paths = []
  for name, content in files.items():
    if not isinstance(content, str):
      lines = (json.dumps(row, ensure_ascii=False) for row in content)
      content = ''.join(f'{line}\n' for line in lines)
    data = content.encode()
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == '.gz' else data)
    paths.append(path)
  return paths


def _all(*found: Iterable[Any]) -> None:
  """Reads each to its end; the last error is raised when all have been."""
  last = None
  for some in found:
    try:
      for _ in some:
        pass
    except UserError as e:
      last = e
  if last:
    raise last


def _checked(*found: Iterable[Any]) -> None:
  """`_all`, as `dualenc data check` reads them."""
  with rows.collecting():
    _all(*found)


PAIR = {
    'query': 'what is it?', 'passage': ['a text', 'two'], 'title': ['A', 'B'],
    'negatives': ['no', 'nor'], 'negatives_2': 'never', 'query_id': 7,
    'passage_id': ['p1', 'p2'], 'name': 'n m'.split(), 'w': 0.5, 's': [1, 2],
    'ns': [0.5, 1], 'ns_2': 3,
}
_COLUMNS = {
    'title': 'title', 'weight': 'w', 'positive_scores': 's',
    'negative_scores': 'ns',
}


def _pairs(
    folder: pathlib.Path, name: str, content: Any, **columns: str
) -> Reader:
  (path,) = write(folder, {name: content})
  tasks = [
      Pairs(train=str(path), test=str(path), strict=strict, **columns)
      for strict in _STRICT
  ]

  def read():
    _all(*(task.examples('train') for task in tasks), tasks[1].examples('test'))
    _checked(tasks[0].examples('train'))

  return Reader([path], read)


def pairs_jsonl(folder: pathlib.Path) -> Reader:
  content = [PAIR, {'query': 'q', 'passage': 'p'} | {'w': 1, 's': 2}]
  return _pairs(folder, 'a.jsonl', content, **_COLUMNS)


def pairs_gz(folder: pathlib.Path) -> Reader:
  return _pairs(folder, 'a.jsonl.gz', [PAIR, PAIR], **_COLUMNS)


def pairs_tsv(folder: pathlib.Path) -> Reader:
  content = 'query\tpassage\tnegatives\tquery_id\tw\nq\tp\tn\t1\t2\n'
  return _pairs(folder, 'a.tsv', content, weight='w')


def pairs_parquet(folder: pathlib.Path) -> Reader:
  import pyarrow
  from pyarrow import parquet

  reader = _pairs(folder, 'a.parquet', '', **_COLUMNS)
  table = [{**PAIR, 'query': f'q{i}'} for i in range(3)]
  parquet.write_table(pyarrow.Table.from_pylist(table), reader.files[0])
  return reader


def texts(folder: pathlib.Path) -> Reader:
  """Corpora, queries and documents of the user's own."""
  row = {'_id': 'd1', 'title': 'A title', 'text': 'One. Two is it. Three so.'}
  paths = write(
      folder,
      {
          'a.jsonl': [row, {'id': 2, 'text': 'Of it. All of it is.'}],
          'a.tsv': 'id\ttext\ttitle\n1\tOne. Two is it.\tT\n2\tx\t\n',
          'a.txt.gz': '1\tone\tT\n2\ttwo\tU\n',
      },
  )

  def read():
    for path, strict in itertools.product(map(str, paths), _STRICT):
      found = Texts(path, strict)
      _all(
          found.examples('corpus'),
          found.examples('queries'),
          Documents(path, titles=1, clozes=2, strict=strict).examples('train'),
      )

  return Reader(paths, read)


def beir(folder: pathlib.Path) -> Reader:
  """A folder with qrels and hard negatives."""
  mined = {'qid': 'q1', 'pos': [{'pid': 'd1', 'ce-score': 9}], 'neg': {
      'bm25': [{'pid': 'd2', 'ce-score': 0.5}], 'other': [{'pid': 'd3'}],
  }}
  paths = write(
      folder,
      {
          'corpus.jsonl': [
              {'_id': f'd{i}', 'title': 't' * (i % 2), 'text': text}
              for i, text in enumerate(TEXTS)
          ],
          'queries.jsonl.gz': [{'_id': 'q1', 'text': 'q'}],
          'qrels/train.tsv': 'query-id\tcorpus-id\tscore\nq1\td1\t1\n',
          'qrels/test.tsv': 'q1\td1\t2\n',
          'mined.jsonl': [mined],
      },
  )
  tasks = [
      Beir(
          folder=str(folder), hard_negatives=str(paths[-1]), scores=True,
          strict=strict,
      )
      for strict in _STRICT
  ]

  def read():
    for task in tasks:
      _all(*(task.examples(split) for split in ('train', 'test', 'corpus')))
    _checked(*(tasks[0].examples(split) for split in ('train', 'corpus')))

  return Reader(paths, read)


def hard_negatives(folder: pathlib.Path) -> Reader:
  """Those forms that `beir` has not."""
  paths = write(
      folder,
      {
          'a.jsonl': [{
              'query_id': 1,
              'positive_passages': [{'docid': '5', 'title': '', 'text': 'p'}],
              'negative_passages': [{'title': 't', 'text': 'n'}],
          }],
          'a.tsv': '1\t7,8,9\n',
          'gpl.tsv': '1\t5\t7\t1.5\n1\t5\t8\t-2\n',
      },
  )
  found = [
      HardNegatives(path, strict=strict, scored=path is paths[-1])
      for path, strict in itertools.product(paths, _STRICT)
  ]
  return Reader(paths, lambda: _all(*(f.read({'1': ['5']}) for f in found)))


def judgements(folder: pathlib.Path) -> Reader:
  """Qrels of each form."""
  paths = write(
      folder,
      {
          'beir.tsv': 'query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n',
          'trec.txt': 'q1 0 d1 1\nq2 0 d2 -1\n',
          'a.json': [{'q1': {'d1': 1, 'd2': 0}, 'q2': {'d3': 2}}],
          'packed.tsv.gz': '1\t0\t2\t1\n"1"\t0\t"3"\t1\n',
      },
  )

  def read():
    for path, strict in itertools.product(paths, _STRICT):
      qrels.read(path, strict)
    for path in paths:
      trec.read_qrels(path)

  return Reader(paths, read)


def multireqa(folder: pathlib.Path) -> Reader:
  """MRQA's contexts and MultiReQA's candidates."""
  context = {
      'id': 'c', 'context': 'One is it. Two is not.', 'qas': [{
          'qid': 'a1', 'question': 'what?', 'detected_answers': [
              {'text': 'One', 'char_spans': [[0, 2]]}
          ],
      }, {'qid': 'b2', 'question': 'which?', 'detected_answers': []}],
  }
  paths = write(
      folder,
      {
          'mrqa/dev/SQuAD.jsonl.gz': [{'header': {}}, context],
          'multireqa/dev/SQuAD/candidates.json.gz': [
              {
                  'candidate_id': f'SQuAD_a1/b2/_{i}_0',
                  'response_start': 11 * i, 'response_end': 11 * i + 10,
              }
              for i in range(2)
          ],
      },
  )
  tasks = [
      MultiReQA('SQuAD', str(folder), tolerance=1.0, strict=strict)
      for strict in _STRICT
  ]

  def read():
    for task in tasks:
      _all(task.examples('validation'), task.examples('corpus'))

  return Reader(paths, read)


def dpr(folder: pathlib.Path) -> Reader:
  """DPR's JSON arrays, CSV of questions and TSV of passages."""
  passage = {'title': 'T', 'text': 'a text', 'passage_id': '3', 'score': 1.5}
  element = {
      'dataset': 'nq', 'question': 'who?', 'answers': ['me'],
      'positive_ctxs': [passage], 'negative_ctxs': [],
      'hard_negative_ctxs': [{**passage, 'text': 'no', 'passage_id': 4}],
  }
  paths = write(
      folder,
      {
          'biencoder-nq-train.json.gz': json.dumps([element, element]),
          'biencoder-nq-dev.json': json.dumps([element], indent=1),
          'nq-test.qa.csv': 'who?\t["me", \'you\']\nwhat\t["x"]\n',
          'psgs_w100.tsv': 'id\ttext\ttitle\n1\t"a ""b"" c"\tT\n2\tx\ty\n',
      },
  )
  splits = 'train', 'validation', 'test', 'corpus'
  tasks = [OpenNQ(str(folder), strict=strict) for strict in _STRICT]

  def read():
    for task in tasks:
      _all(*map(task.examples, splits))

  return Reader(paths, read)


def msmarco(folder: pathlib.Path) -> Reader:
  paths = write(
      folder,
      {
          'collection.tsv': '0\ta text\n1\tmore\n2\tmost\n',
          'queries.train.tsv': '7\twhat\n',
          'qrels.train.tsv': '7\t0\t1\t1\n',
          'triples.train.small.tsv': 'q\tp\tn\nr\ts\tt\n',
      },
  )
  of_qrels = MsMarco(root=str(folder), tolerance=1.0)
  triples = dataclasses.replace(of_qrels, train_from='triples', strict=False)
  return Reader(
      paths,
      lambda: _all(
          of_qrels.examples('train'),
          of_qrels.examples('corpus'),
          triples.examples('train'),
      ),
  )


def runs(folder: pathlib.Path) -> Reader:
  """TREC runs, and scores of a teacher."""
  paths = write(
      folder,
      {
          'a.trec': 'q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1e-3 t\n',
          'scores.tsv': 'query\tpassage\tscore\nq1\td1\t0.5\nq1\td2\t-1\n',
      },
  )

  def read():
    trec.read_run(paths[0])
    for path in paths:
      _all(teacher_scores._entries(path))

  return Reader(paths, read)


READERS: Mapping[str, Callable[[pathlib.Path], Reader]] = {
    'pairs, JSONL': pairs_jsonl,
    'pairs, JSONL.gz': pairs_gz,
    'pairs, TSV': pairs_tsv,
    'pairs, Parquet': pairs_parquet,
    'texts, documents': texts,
    'BEIR': beir,
    'hard negatives': hard_negatives,
    'qrels': judgements,
    'MRQA, MultiReQA': multireqa,
    'DPR': dpr,
    'MS MARCO': msmarco,
    'runs, scores': runs,
}
