"""Natural Questions over Wikipedia, in the files of DPR."""

import ast
from collections.abc import Iterator, Mapping
import csv
import dataclasses
import logging
import pathlib
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers import files, rows, tables
from dualenc_jax.data.readers.files import FilesDataset

_URL = 'https://dl.fbaipublicfiles.com/dpr/'
# By split: the path below the URL, what is in the file, and its names, as
# published and as DPR's download tool puts it away.
_FILES = {
    'train': (
        'data/retriever/biencoder-nq-train.json.gz',
        '58,880 questions with a positive, several GB unpacked',
        ('biencoder-nq-train.json.gz', 'biencoder-nq-train.json',
         'data/retriever/nq-train.json')),
    'validation': (
        'data/retriever/biencoder-nq-dev.json.gz',
        '6,515 questions with a positive',
        ('biencoder-nq-dev.json.gz', 'biencoder-nq-dev.json',
         'data/retriever/nq-dev.json')),
    'validation_questions': (
        'data/retriever/nq-dev.qa.csv',
        '8,757 questions, less than 2 MB',
        ('nq-dev.qa.csv', 'data/retriever/qas/nq-dev.csv')),
    'test': (
        'data/retriever/nq-test.qa.csv',
        '3,610 questions, less than 1 MB',
        ('nq-test.qa.csv', 'data/retriever/qas/nq-test.csv')),
    'corpus': (
        'wikipedia_split/psgs_w100.tsv.gz',
        '21,015,324 passages, 4.7 GB packed',
        ('psgs_w100.tsv.gz', 'psgs_w100.tsv',
         'data/wikipedia_split/psgs_w100.tsv')),
}
# The columns of lines without names.
_PASSAGE, _QUESTION = ('id', 'text', 'title'), ('question', 'answers')


@dataclasses.dataclass(frozen=True)
class OpenNQ(FilesDataset):
  """Open-domain Natural Questions as DPR (Karpukhin et al. 2020) prepared it.

  train and validation are the questions whose annotated passage was found in
  Wikipedia, with it and BM25's hard negatives.
  test (NQ's own development set) and validation_questions (all questions from
  which validation was made, the development set of the papers' tables) are
  questions and answers without a passage. All but train are ranked over
  corpus, Wikipedia in passages of 100 words.

  As in DPR, a curly apostrophe in a question becomes a straight one, and a
  passage of the corpus loses the quotation marks at its ends. A passage begins
  with its title and a space, where DPR has BERT's [SEP].

  Attributes:
    root: folder of the files; None for `open_nq` in data_root.
    data_root: folder of the benchmarks' folders.
    strict: whether the first bad row, and a positive among the negatives of
      its row, is an error that names file and line, in JSON the element, from
      1 on; else bad rows, and of rows just such negatives, are skipped and the
      log says how many.
  """

  task_name = 'open_nq'
  # The development set of the tables of DPR and of Dong et al. (2022).
  evaluated = 'validation_questions'

  root: str | None = None
  data_root: str | None = None
  strict: bool = True

  def splits(self) -> tuple[str, ...]:
    """The splits whose file exists; all where none does, for a cache may."""
    root = self._root or pathlib.Path()
    found = (
        split for split, (*_, names) in _FILES.items()
        if any((root / name).is_file() for name in names)
    )
    return tuple(found) or tuple(_FILES)

  def paths(self, split: str) -> list[pathlib.Path]:
    if split not in _FILES:
      raise self.missing_split(split, self.splits())
    path, size, names = _FILES[split]
    hint = f'Get it at {_URL}{path} ({size}).'
    return [files.find(self._root, names, 'open_nq', hint)]

  @property
  def _root(self) -> pathlib.Path | None:
    return files.task_folder('open_nq', self.root, self.data_root)

  def corpus_split(self, split: str) -> str | None:
    return None if split in ('train', 'corpus') else 'corpus'

  def answer_text(self, passage: str, title: str) -> str:
    """A passage without its title: where DPR looks for answers."""
    return passage.removeprefix(title)

  def examples(self, split: str) -> Iterator[dict[str, Any]]:
    (path,) = self.paths(split)
    if split == 'corpus':
      return self._corpus(path)
    if split in ('train', 'validation'):
      return self._pairs(path)
    return self._questions(path, split)

  def _pairs(self, path: pathlib.Path) -> Iterator[dict[str, Any]]:
    bare = 0
    faults = rows.Faults(self.strict, 'negatives')
    for number, (pair, false_negatives) in rows.parse_rows(
        path, files.elements(path), _parse_pair, self.strict
    ):
      location = f'{path}:{number}'
      bare += not pair
      if false_negatives:
        faults.add(
            'a positive passage is among the negatives', location,
            count=false_negatives,
        )
      if pair:
        yield pair | {'location': location}
    faults.warn(path)
    if bare:
      logging.getLogger(__name__).info(
          '%s: skipped %d questions without a positive.', path, bare
      )

  def _corpus(self, path: pathlib.Path) -> Iterator[dict[str, Any]]:
    table = tables.tsv(path, _PASSAGE, split=_cells)
    for _, (name, text, title) in rows.parse_rows(
        path, table.numbered, lambda x: _passage(table.parse(x)), self.strict
    ):
      # A passage may be blank, as some of BEIR are.
      text = text.strip('"') if text.strip() else ''
      yield example(**_titled(text, title, name))

  def _questions(
      self, path: pathlib.Path, split: str
  ) -> Iterator[dict[str, Any]]:
    table = tables.tsv(path, _QUESTION, split=_cells)
    for number, (query, answers) in rows.parse_rows(
        path, table.numbered, lambda x: _asked(table.parse(x)), self.strict
    ):
      # A question that stands there twice counts twice.
      yield example(
          query, query_id=f'{split}-{number}', answers=answers,
          location=f'{path}:{number}',
      )


def _titled(text: str, title: str, name: str) -> dict[str, str]:
  """A passage, as arguments of `example`."""
  joined = f'{title} {text}' if title else text
  return {'passage': joined, 'passage_id': name, 'name': title}


def _parse_pair(row: Any) -> tuple[dict[str, Any], int]:
  """The pair of an element, {} without a positive; negatives skipped."""
  row = rows.as_object(row)
  positives = list(_passages(row, 'positive_ctxs'))
  if not positives:
    return {}, 0
  texts = {positive['passage'].strip() for positive in positives}
  given = [p['passage'] for p in _passages(row, 'hard_negative_ctxs')]
  negatives = [passage for passage in given if passage.strip() not in texts]
  return example(
      _question(rows.text(row, 'question')), **positives[0],
      negatives=negatives, answers=_answers(row.get('answers')),
  ), len(given) - len(negatives)


def _passages(row: Mapping[str, Any], column: str) -> Iterator[dict[str, str]]:
  """Yields the passages of a list, as arguments of `example`."""
  found = row.get(column) or []
  if not isinstance(found, list):
    raise rows.BadRow(f'{column!r} is not a list of objects')
  for passage in found:
    passage = rows.as_object(passage)
    yield _titled(
        rows.text(passage, 'text'), rows.title(passage),
        rows.identifier(passage, 'passage_id'),
    )


def _passage(row: Mapping[str, str]) -> list[str]:
  rows.text(row, 'id')
  return [rows.text(row, name, empty=True) for name in _PASSAGE]


def _asked(row: Mapping[str, str]) -> tuple[str, list[str]]:
  query, answers = rows.text(row, 'question'), row.get('answers', '')
  try:
    return _question(query), _answers(ast.literal_eval(answers))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return _question(query), _answers(None)


def _question(query: str) -> str:
  return query.replace('\u2019', "'")


def _answers(answers: Any) -> list[str]:
  if not isinstance(answers, list) or not all(
      isinstance(answer, str) for answer in answers
  ):
    raise rows.BadRow("'answers' is not a list of strings")
  for answer in answers:
    rows.check_text('answers', answer, empty=True)
  return answers


def _cells(line: bytes) -> list[str]:
  """Tab-separated cells, quoted as Python's csv does; raises rows.BadRow."""
  try:
    (row,) = tables.csv_reader([rows.decode(line)], delimiter='\t')
  except csv.Error as error:
    raise rows.BadRow(f'not CSV: {error}') from None
  return row
