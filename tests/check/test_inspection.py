"""Counts of an inspection against plain Python, on small tasks."""

import json

import sentencepiece

from dualenc_jax.data import Mixture, Tokenizer, Vocabulary
from dualenc_jax.data.check.findings import find_faults, Level
from dualenc_jax.data.check.inspection import inspect_task
from dualenc_jax.data.check.report import markdown
from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.readers import Documents, Pairs
from dualenc_jax.data.readers.rows import Occurrences
from dualenc_jax.utils.errors import UserError

VOCABULARY = Vocabulary('python_code_8k')


def inspect(task, passage_length=32, **options):
  tokenizer = Tokenizer(VOCABULARY, 16, passage_length)
  return inspect_task(task, tokenizer, **options)


def found(inspection, level):
  faults = find_faults(inspection)
  return [(f.where, f.what) for f in faults if f.level is level]


class Rows(Dataset):
  """A task of rows given by split."""

  task_name = 'rows'

  def __init__(self, **splits):
    self._splits = splits

  def splits(self):
    return tuple(self._splits)

  def examples(self, split):
    for row in self._splits[split]:
      if isinstance(row, Exception):
        raise row
      yield row

  def corpus_split(self, split):
    return 'corpus' if 'corpus' in self._splits and split != 'corpus' else None


def row(line, query, passage, negatives=(), ids=('', ''), **values):
  return example(
      query, passage, negatives=[*negatives], query_id=ids[0],
      passage_id=ids[1], location=f'f:{line}', **values,
  )


def test_every_oddity_is_counted():
  half, drift = 'half a brain', 'they drift'
  rows = [
      row(1, 'whales', half, ['sharks'], ('q1', 'p1')),
      # The first's texts; the second id of the query; a positive is negative.
      row(2, 'whales', half, [half], ('q2', 'p1')),
      # p1 is another text, too.
      row(3, 'whales', drift, [half, '["x"]'], ('q1', 'p1')),
      row(4, 'same', 'same', ids=('q3', 'p4')),
      row(5, '  ', 'It\xe2\x80\x99s', ids=('q4', 'p5')),
      row(6, 'lost', '\ufffd', ['\u3000', 'a' * 1000, '中' * 1000],
          ('q5', 'p6')),
      row(7, 'judged', drift, ids=('q6', 'p7'), relevance=0),
      row(8, 'alone', ''),
      row(9, '', drift),
      # Repeats the first.
      row(10, 'whales', half, ids=('q1', 'p1')),
  ]
  inspection = inspect(Rows(train=rows))
  split = inspection.splits[0]
  assert (split.rows, split.pairs, split.distinct_pairs) == (10, 7, 5)
  assert split.judged_irrelevant == 1
  assert (split.lone_queries, split.lone_passages) == (1, 1)
  assert split.found['repeated_pairs'] == Occurrences(1, ['f:10 and f:1'])
  assert split.found['copied_pairs'] == Occurrences(1, ['f:2 and f:1'])
  assert split.found['equal_texts'] == Occurrences(1, ['f:4'])
  assert split.found['positive_negatives'] == Occurrences(1, ['f:2'])
  assert (split.fewest_negatives, split.most_negatives) == (0, 3)
  assert split.without_negatives == 3
  queries, passages = split.queries, split.passages
  assert (queries.count, queries.distinct) == (9, 6)
  assert queries.most_repeated == 4
  assert (passages.count, passages.distinct) == (9, 5)
  assert passages.unique == 5 / 9
  assert (split.negatives.count, split.negatives.distinct) == (7, 6)
  assert split.negatives.found['long_words'] == Occurrences(1, ['f:6'])
  assert queries.found['blank'] == Occurrences(1, ['f:5'])
  assert split.negatives.found['blank'] == Occurrences(1, ['f:6'])
  assert split.negatives.found['lists'] == Occurrences(1, ['f:3'])
  garbled = ['f:5 "It\xe2\\x80\\x99s"', 'f:6 "\ufffd"']
  assert passages.found['garbled'] == Occurrences(2, garbled)
  copies = Occurrences(1, ['f:2 and f:1'])
  assert queries.found['texts_of_several_ids'] == copies
  assert queries.found['ids_of_several_texts'].count == 0
  other = Occurrences(1, ['f:3 and f:1'])
  assert passages.found['ids_of_several_texts'] == other
  copies = Occurrences(1, ['f:7 and f:3'])
  assert passages.found['texts_of_several_ids'] == copies
  for level, parts in {
      Level.WRONG: (
          'pairs with their passage among their hard negatives: 1',
          'queries without a passage: 1',
      ),
      Level.SUSPICIOUS: (
          'pairs whose query is their passage: 1',
          'passage ids that name several texts: 1',
          'different pairs: no more than 5',
          'with the texts of earlier ones, but other ids: 1',
      ),
  }.items():
    told = '\n'.join(what for _, what in found(inspection, level))
    assert all(part in told for part in parts)


def test_good_data_has_nothing_wrong():
  rows = [example(f'query {i}', f'passage {i}') for i in range(30)]
  inspection = inspect(Rows(train=rows[:20], validation=rows[20:]))
  assert find_faults(inspection) == []
  assert 'Nothing wrong or suspicious' in markdown(inspection, [])
  # A corpus alone is no data to train on or to evaluate on.
  (no_pairs,) = find_faults(inspect(Rows(corpus=[example('', 'p')])))
  assert (no_pairs.level, no_pairs.where) == (Level.UNUSABLE, 'train')


def test_repeats_on_purpose_are_no_finding(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_text('\n'.join(
      json.dumps({'id': i, 'title': f'title {i}', 'text': f'["a b", "c {i}"]'
                  '\nA line of all.'})
      for i in range(299)
  ))
  inspection = inspect(Documents(str(path)))
  split = inspection.splits[0]
  assert split.pairs == 2 * split.distinct_pairs > 30
  assert find_faults(inspection) == []


def test_leaks_between_splits():
  train = [example(f'q{i}', f'p{i}', location=f't:{i}') for i in range(1, 6)]
  test = [
      example('q1', 'p1', location='v:1'),
      example('q2', 'other', location='v:2'),
      example('q2', 'p3', location='v:3'),
      example('new', 'p3', location='v:4'),
      # Not a pair: the judgement says that it is none.
      example('q5', 'p5', location='v:5', relevance=0),
      example('q9', 'p9', location='v:6'),
  ]
  (overlap,) = inspect(Rows(train=train, test=test)).overlaps
  assert (overlap.held_out, overlap.train) == ('test', 'train')
  both = 'v:1 and t:1', 'v:5 and t:5'
  assert overlap.queries == Occurrences(3, [both[0], 'v:2 and t:2', both[1]])
  assert overlap.passages == Occurrences(3, [both[0], 'v:3 and t:3', both[1]])
  assert overlap.pairs == Occurrences(1, ['v:1 and t:1'])


def test_a_split_that_breaks_off_keeps_what_was_read():
  rows = [example('a', 'b'), example('c', 'd'), UserError('damaged here.')]
  inspection = inspect(Rows(train=rows, test=[example('e', 'f')]))
  train, test = inspection.splits
  assert (train.rows, train.error) == (2, 'damaged here.')
  assert (test.rows, test.error) == (1, None)
  assert found(inspection, Level.UNUSABLE) == [('train', 'damaged here')]


def test_tasks_of_a_mixture_are_read_one_by_one(tmp_path):
  names = ('a.jsonl', 'b.jsonl', 'c.jsonl')
  for name, texts in zip(names, ('ab', 'cd', 'ac')):
    lines = [json.dumps({'query': t, 'passage': f'{t}!'}) for t in texts]
    (tmp_path / name).write_text('\n'.join(lines))
  a, b, c = (str(tmp_path / name) for name in names)
  trained_on = [Pairs(train=a), Pairs(train=b)]
  inspection = inspect(Mixture(trained_on, None, Pairs(validation=c)))
  names = ['pairs/train', 'pairs 2/train', 'pairs 3/validation']
  assert [split.name for split in inspection.splits] == names
  assert [
      (o.held_out, o.train, o.queries.count, o.pairs.count)
      for o in inspection.overlaps
  ] == [(names[2], name, 1, 1) for name in names[:2]]


def test_samples_are_what_the_model_sees():
  code = 'def f(x):\n  return x + 1 ' * 9
  rows = [example(f'number {i}', code, negatives=['no']) for i in range(11)]
  samples = inspect(Rows(train=rows), passage_length=6).splits[0].samples
  assert [sample.place for sample in samples] == ['row 1', 'row 10']
  query, passage, negative = samples[1].texts
  processor = sentencepiece.SentencePieceProcessor(str(VOCABULARY.file))
  ids = processor.encode(rows[0]['passage'])
  cut = processor.decode(ids[:5]).replace('\n', '\\n')
  assert passage == ('passage', f'{cut} EOS', 6, len(ids) + 1)
  assert query[:2] == ('query', 'number 9 EOS') and query[2] == query[3]
  assert negative[:2] == ('negative', 'no EOS')
