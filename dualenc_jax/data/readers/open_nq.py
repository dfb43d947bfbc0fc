"""Natural Questions over Wikipedia, in the files of DPR."""

from collections.abc import Iterator, Mapping, Sequence
import csv
import dataclasses
import logging
import pathlib
from typing import Any

from dualenc_jax.data.dataset import example
from dualenc_jax.data.readers import (
  files,
  json_array,
  list_cells,
  pairs_formats,
  quoted,
  rows,
)
from dualenc_jax.data.readers.files import FilesDataset
from dualenc_jax.utils.errors import expect, SourceUnavailable

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
# Of lines without names.
_PASSAGE, _QUESTION = ('id', 'text', 'title'), ('question', 'answers')
_NEGATIVES = ('hard_negative_ctxs', 'negative_ctxs')


@dataclasses.dataclass(frozen=True)
class OpenNQ(FilesDataset):
  """Open-domain Natural Questions as DPR (Karpukhin et al. 2020) prepared it.

  train and validation are the questions whose annotated passage was found in
  Wikipedia, with it, other passages that hold the answer, and hard negatives.
  test (NQ's own development set) and validation_questions (all questions from
  which validation was made, the development set of the papers' tables) are
  questions and answers without a passage. All but train are ranked over
  corpus, Wikipedia in passages of 100 words.

  As in DPR, a curly apostrophe in a question becomes a straight one, and a
  passage of the corpus loses the quotation marks at its ends.

  Attributes:
    root: folder of the files; None for `open_nq` in data_root.
    data_root: folder of the benchmarks' folders.
    title_separator: put between title and text of a passage; DPR has BERT's
      [SEP] there. None leaves the title out.
    positives: 'first', the annotated passage, as DPR trains; 'all' makes a row
      of every passage that holds the answer.
    negatives: lists of the file that hard negatives are taken from, in this
      order: 'hard_negative_ctxs' (of BM25) and 'negative_ctxs' (random).
    max_negatives: how many of them a row keeps; None for all.
    strict: whether the first bad row, and a positive among the negatives of
      its row, is an error that names file and line, in JSON the element, from
      1 on; else bad rows, and of rows just such negatives, are left out and
      the log says how many.
  """

  task_name = 'open_nq'
  # The development set of the tables of DPR and of Dong et al. (2022).
  evaluated = 'validation_questions'
  NOT_OF_CORPUS = ('max_negatives', 'negatives', 'positives')

  root: str | None = None
  data_root: str | None = None
  title_separator: str | None = ' '
  positives: str = 'first'
  negatives: Sequence[str] = ('hard_negative_ctxs',)
  max_negatives: int | None = None
  strict: bool = True

  def __post_init__(self):
    rows.check_choice('positives', self.positives, ('first', 'all'))
    super().__post_init__()
    expect(
        not isinstance(self.negatives, str)
        and {*self.negatives} <= {*_NEGATIVES},
        'negatives', self.negatives, f'a list of some of {_NEGATIVES}',
    )
    most = self.max_negatives
    expect(most is None or most >= 0, 'max_negatives', most, '0 or more')

  def splits(self) -> tuple[str, ...]:
    """Those whose file exists; all where none does, for a cache may."""
    return tuple(filter(self._exists, _FILES)) or tuple(_FILES)

  def paths(self, split: str) -> list[pathlib.Path]:
    if split not in _FILES:
      raise self.no_split(split, _FILES)
    root = files.task_folder('open_nq', self.root, self.data_root)
    path, size, names = _FILES[split]
    hint = f'Get it at {_URL}{path} ({size}).'
    return [files.find(root, names, 'open_nq', hint)]

  def corpus_split(self, split: str) -> str | None:
    return None if split in ('train', 'corpus') else 'corpus'

  def answer_text(self, passage: str, title: str) -> str:
    """A passage without its title: where DPR looks for answers."""
    if self.title_separator is None:
      return passage
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
    for number, (pairs, false_negatives) in rows.checked(
        path, json_array.elements(path), self._parse_pairs, self.strict
    ):
      bare += not pairs
      if false_negatives:
        faults.add(
            'a positive passage is among the negatives', f'{path}:{number}',
            count=false_negatives,
        )
      for pair in pairs:
        yield pair | {'location': f'{path}:{number}'}
    faults.warn(path)
    if bare:
      logging.getLogger(__name__).info(
          '%s: left out %d questions without a positive.', path, bare
      )

  def _parse_pairs(self, row: Any) -> tuple[list[dict[str, Any]], int]:
    """The rows of an element, none without a positive; negatives left out."""
    if not isinstance(row, dict):
      raise rows.BadRow('not a JSON object')
    positives = list(self._passages(row, 'positive_ctxs'))
    if not positives:
      return [], 0
    texts = {positive['passage'].strip() for positive in positives}
    given = [p['passage'] for p in self._passages(row, *self.negatives)]
    negatives = [passage for passage in given if passage.strip() not in texts]
    false_negatives = len(given) - len(negatives)
    query = _question(rows.text(row, 'question'))
    more: dict[str, Any] = {
        'negatives': negatives[: self.max_negatives],
        'answers': _answers(row.get('answers')),
    }
    kept = positives[:1] if self.positives == 'first' else positives
    return [example(query, **p, **more) for p in kept], false_negatives

  def _passages(
      self, row: Mapping[str, Any], *columns: str
  ) -> Iterator[dict[str, str]]:
    """Yields passages of lists of an element, as arguments of `example`."""
    for column in columns:
      found = row.get(column) or []
      if not isinstance(found, list) or not all(
          isinstance(passage, dict) for passage in found
      ):
        raise rows.BadRow(f'{column!r} is not a list of objects')
      for passage in found:
        yield self._passage(
            rows.text(passage, 'text'),
            rows.text({'title': '', **passage}, 'title', empty=True),
            rows.identifier(passage, 'passage_id'),
        )

  def _corpus(self, path: pathlib.Path) -> Iterator[dict[str, Any]]:
    table = pairs_formats.tsv(path, _PASSAGE, split=_cells)
    for _, (name, text, title) in rows.checked(
        path, table.numbered, lambda x: _passage(table.parse(x)), self.strict
    ):
      # A passage may be blank, as some of BEIR are.
      text = text.strip('"') if text.strip() else ''
      yield example(**self._passage(text, title, name))

  def _questions(
      self, path: pathlib.Path, split: str
  ) -> Iterator[dict[str, Any]]:
    table = pairs_formats.tsv(path, _QUESTION, split=_cells)
    for number, (query, answers) in rows.checked(
        path, table.numbered, lambda x: _asked(table.parse(x)), self.strict
    ):
      # A question that stands there twice counts twice.
      yield example(
          query, query_id=f'{split}-{number}', answers=answers,
          location=f'{path}:{number}',
      )

  def _passage(self, text: str, title: str, name: str) -> dict[str, str]:
    joined = text
    if title and self.title_separator is not None:
      joined = f'{title}{self.title_separator}{text}'
    return {'passage': joined, 'passage_id': name, 'name': title}

  def _exists(self, split: str) -> bool:
    try:
      return bool(self.paths(split))
    except SourceUnavailable:
      return False


def _passage(row: Mapping[str, str]) -> list[str]:
  rows.text(row, 'id')
  return [rows.text(row, name, empty=True) for name in _PASSAGE]


def _asked(row: Mapping[str, str]) -> tuple[str, list[str]]:
  query, answers = rows.text(row, 'question'), row.get('answers', '')
  try:
    return _question(query), _answers(list_cells.parse(answers))
  except ValueError:
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
    (cells,) = quoted.reader([rows.decode(line)], delimiter='\t')
  except csv.Error as error:
    raise rows.BadRow(f'not CSV: {error}') from None
  return cells
