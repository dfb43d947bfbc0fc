"""Small good files of every kind of data, and what reads them."""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import gzip
import itertools
import json
import pathlib
import shutil
from typing import Any

from dualenc_jax.data.readers import (
  Beir,
  Documents,
  hard_negatives,
  MsMarco,
  MultiReQA,
  OpenNQ,
  Pairs,
  qrels,
  rows,
  Texts,
)
from dualenc_jax.evaluation import teacher_scores, trec
from dualenc_jax.utils.errors import UserError

_DATA = pathlib.Path(__file__).parents[1] / 'tests/data'
_STRICT = (True, False)
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


def files(folder: pathlib.Path) -> list[pathlib.Path]:
  """All files with content."""
  return [
      path
      for path in sorted(folder.rglob('*'))
      if path.is_file() and path.stat().st_size
  ]


def _copied(folder: pathlib.Path, name: str, *read: str) -> list[pathlib.Path]:
  """Copies a folder of tests/data here; its files, or those that are read."""
  found = files(shutil.copytree(_DATA / name, folder, dirs_exist_ok=True))
  return [folder / each for each in read] or found


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


def _of_tasks(
    paths: list[pathlib.Path], make: Callable[[bool], Any], *splits: str
) -> Reader:
  """Splits of a task, strict and not, and as `dualenc data check` reads it."""
  tasks = [make(strict) for strict in _STRICT]

  def read():
    _all(*(task.examples(s) for task in tasks for s in splits))
    with rows.collecting():
      _all(*(tasks[0].examples(s) for s in splits))

  return Reader(paths, read)


def _pairs(
    folder: pathlib.Path, name: str, content: Any, **columns: str
) -> Reader:
  (path,) = write(folder, {name: content})

  def task(strict):
    return Pairs(train=str(path), test=str(path), strict=strict, **columns)

  return _of_tasks([path], task, 'train', 'test')


def _pairs_jsonl(folder: pathlib.Path) -> Reader:
  content = [PAIR, {'query': 'q', 'passage': 'p'} | {'w': 1, 's': 2}]
  return _pairs(folder, 'a.jsonl', content, **_COLUMNS)


def _pairs_gz(folder: pathlib.Path) -> Reader:
  return _pairs(folder, 'a.jsonl.gz', [PAIR, PAIR], **_COLUMNS)


def _pairs_tsv(folder: pathlib.Path) -> Reader:
  content = 'query\tpassage\tnegatives\tquery_id\tw\nq\tp\tn\t1\t2\n'
  return _pairs(folder, 'a.tsv', content, weight='w')


def _pairs_parquet(folder: pathlib.Path) -> Reader:
  import pyarrow
  from pyarrow import parquet

  reader = _pairs(folder, 'a.parquet', '', **_COLUMNS)
  table = [{**PAIR, 'query': f'q{i}'} for i in range(3)]
  parquet.write_table(pyarrow.Table.from_pylist(table), reader.files[0])
  return reader


def _texts(folder: pathlib.Path) -> Reader:
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


def _beir(folder: pathlib.Path) -> Reader:
  """A folder with qrels and hard negatives."""
  names = 'corpus.jsonl', 'queries.jsonl', 'qrels/train.tsv'
  paths = _copied(folder, 'beir/toy', *names, 'hard-negatives.jsonl')
  bm25, other = [{'pid': 'd2', 'ce-score': 0.5}], [{'pid': 'd3'}]
  mined = {'qid': 'q1', 'pos': [{'pid': 'd1', 'ce-score': 9}]}
  mined['neg'] = {'bm25': bm25, 'other': other}
  write(folder, {'hard-negatives.jsonl': [mined]})

  def task(strict):
    path = str(folder / 'hard-negatives.jsonl')
    return Beir(
        folder=str(folder), hard_negatives=path, scores=True, strict=strict
    )

  return _of_tasks(paths, task, 'train', 'corpus')


def _hard_negatives(folder: pathlib.Path) -> Reader:
  """The other forms."""
  paths = [
      *(p for p in _copied(folder, 'msmarco') if p.name.startswith('hard')),
      *write(folder, {'gpl.tsv': '1\t5\t7\t1.5\n1\t5\t8\t-2\n'}),
  ]
  known = {'100': ['0'], '101': ['1'], '1': ['5']}

  def read():
    _all(*(
        hard_negatives.read(
            path, known, strict=strict, scored=path is paths[-1]
        )
        for path, strict in itertools.product(paths, _STRICT)
    ))

  return Reader(paths, read)


def _judgements(folder: pathlib.Path) -> Reader:
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


def _multireqa(folder: pathlib.Path) -> Reader:
  """MRQA's contexts and MultiReQA's candidates."""
  contexts, candidates = (
      (_DATA / 'multireqa' / name).read_text()
      for name in ('contexts.jsonl', 'candidates.json')
  )
  paths = write(
      folder,
      {
          'mrqa/dev/SQuAD.jsonl.gz': contexts,
          'multireqa/dev/SQuAD/candidates.json.gz': candidates,
      },
  )

  def task(strict):
    return MultiReQA('SQuAD', str(folder), strict=strict)

  return _of_tasks(paths, task, 'validation', 'corpus')


def _dpr(folder: pathlib.Path) -> Reader:
  """DPR's JSON arrays, CSV of questions and TSV of passages."""
  return _of_tasks(
      _copied(folder, 'open_nq'),
      lambda strict: OpenNQ(str(folder), strict=strict),
      *('train', 'validation', 'test', 'corpus'),
  )


def _msmarco(folder: pathlib.Path) -> Reader:
  names = 'collection', 'queries.train', 'qrels.train'
  paths = _copied(folder, 'msmarco', *(f'{name}.tsv' for name in names))
  task = MsMarco(root=str(folder))
  return Reader(
      paths, lambda: _all(task.examples('train'), task.examples('corpus'))
  )


def _runs(folder: pathlib.Path) -> Reader:
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
      _all(teacher_scores.read_scores(path))

  return Reader(paths, read)


READERS: Mapping[str, Callable[[pathlib.Path], Reader]] = {
    'pairs, JSONL': _pairs_jsonl,
    'pairs, JSONL.gz': _pairs_gz,
    'pairs, TSV': _pairs_tsv,
    'pairs, Parquet': _pairs_parquet,
    'texts, documents': _texts,
    'BEIR': _beir,
    'hard negatives': _hard_negatives,
    'qrels': _judgements,
    'MRQA, MultiReQA': _multireqa,
    'DPR': _dpr,
    'MS MARCO': _msmarco,
    'runs, scores': _runs,
}
