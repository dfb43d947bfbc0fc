"""The inspection of real data, against counting in plain Python."""

import csv
import json

from inspecting import inspect

from dualenc_jax.readers import Beir


def test_scifact(shared):
  folder = shared / 'data/scifact'
  inspection = inspect(Beir(folder=str(folder)))
  splits = {split.name: split for split in inspection.splits}
  lines = (folder / 'queries.jsonl').read_text('utf-8').splitlines()
  texts = {q['_id']: q['text'] for q in map(json.loads, lines)}
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
