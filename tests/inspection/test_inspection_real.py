"""The inspection of real data, against counting in plain Python."""

import collections
import csv
import gzip
import json
import pathlib
import re

from inspecting import inspect, pairs, VOCABULARY
import numpy as np
import pytest
import sentencepiece

from dualenc_jax.inspection.summary import PERCENTILES
from dualenc_jax.readers import Beir

LIMIT = 3000


def check_texts(texts, rows, processor, limit):
  """Compares with sets and lists of Python."""
  counts = collections.Counter(rows)
  assert texts.count == len(rows) and texts.distinct == len(counts)
  assert texts.most_repeated == counts.most_common(1)[0][1]
  lengths = np.array([len(ids) + 1 for ids in processor.encode(rows)])
  assert texts.lengths.mean == pytest.approx(lengths.mean())
  assert texts.lengths.percentiles == {
      p: np.percentile(lengths, p, method='inverted_cdf') for p in PERCENTILES
  }
  assert texts.lengths.longest == lengths.max()
  assert texts.lengths.truncated == pytest.approx((lengths > limit).mean())
  assert sum(count for _, count in texts.lengths.counts) == len(rows)


def read_jsonl(path):
  path = pathlib.Path(path)
  opener = gzip.open if path.suffix == '.gz' else open
  with opener(path, 'rt', encoding='utf-8') as stream:
    return [json.loads(line) for line in stream]


def test_medquad(shared):
  path = shared / 'data/medquad/pairs.jsonl.gz'
  task = pairs('question', 'answer', train=str(path), passage_id='id')
  split = inspect(task, limit=LIMIT).splits[0]
  rows = read_jsonl(path)[:LIMIT]
  processor = sentencepiece.SentencePieceProcessor(str(VOCABULARY.file))
  check_texts(split.queries, [row['question'] for row in rows], processor, 16)
  check_texts(split.passages, [row['answer'] for row in rows], processor, 32)
  assert split.pairs == LIMIT
  distinct = {(row['question'], row['answer']) for row in rows}
  assert split.distinct_pairs == len(distinct)
  texts, ids = collections.defaultdict(set), collections.defaultdict(set)
  for row in rows:
    texts[row['id']].add(row['answer'])
    ids[row['answer']].add(row['id'])
  several = sum(len(of) > 1 for of in texts.values())
  assert split.passages.ids_of_several_texts.count == several
  several = sum(len(of) > 1 for of in ids.values())
  assert split.passages.texts_of_several_ids.count == several > 10


def test_scifact(shared):
  folder = shared / 'data/scifact'
  inspection = inspect(Beir(folder=str(folder)))
  splits = {split.name: split for split in inspection.splits}
  texts = {q['_id']: q['text'] for q in read_jsonl(folder / 'queries.jsonl')}
  judged = {}
  for name in ('train', 'test'):
    with open(folder / f'qrels/{name}.tsv', newline='') as stream:
      rows = list(csv.DictReader(stream, delimiter='\t'))
    judged[name] = rows
    queries = [texts[row['query-id']] for row in rows]
    assert splits[name].pairs == len(rows)
    assert splits[name].queries.distinct == len(set(queries))
    assert splits[name].passages.distinct == len(
        {row['corpus-id'] for row in rows}
    )
  assert splits['corpus'].rows == splits['corpus'].passages.distinct == 5183
  (overlap,) = inspection.overlaps
  queries, passages = (
      [{row[key] for row in rows} for rows in judged.values()]
      for key in ('query-id', 'corpus-id')
  )
  in_both = set.intersection(
      *({texts[name] for name in names} for names in queries)
  )
  # Two claims of the test set are in the train set, too, under other ids.
  assert overlap.queries.count == len(in_both) == 2
  assert overlap.passages.count == len(set.intersection(*passages))
  assert [missing.passages.count for missing in inspection.missing] == [0, 0]


def test_rocketqa_mojibake(shared, tmp_path):
  source = shared / 'data/hardneg_samples/rocketqa/marco.tp.1k'
  lines = source.read_text('utf-8').rstrip('\n').split('\n')
  rows = [line.split('\t') for line in lines]
  path = tmp_path / 'train.jsonl'
  path.write_text(
      '\n'.join(json.dumps({'query': q, 'passage': p}) for q, p in rows)
  )

  def is_mojibake(text):
    for run in re.findall(r'[^\x00-\x7f]+', text):
      try:
        if run.encode('latin-1').decode('utf-8') != run:
          return True
      except UnicodeError:
        continue
    return False

  split = inspect(pairs(train=str(path))).splits[0]
  for texts, column in zip((split.queries, split.passages), zip(*rows)):
    expected = sum(map(is_mojibake, column))
    # One Greek letter, such as \xce\xb2, may be right as it is.
    assert expected * 0.98 <= texts.mojibake.count <= expected
  assert split.passages.mojibake.count > 150
