"""Pairs of documents without queries."""

import pytest
from reading import write

from dualenc_jax.data.readers import Documents
from dualenc_jax.utils.errors import UserError

SENTENCES = [
    'The first sentence is here.', 'A second one follows it!', 'Is this third?'
]
TEXT = ' '.join(SENTENCES)


def write_documents(path, documents):
  return str(write(path, *(
      {'_id': name, 'title': title, 'text': text}
      for name, (title, text) in documents.items()
  )))


@pytest.fixture
def path(tmp_path):
  documents = {
      f'd{i}': (f'Title {i}', f'{TEXT} Number {i}.') for i in range(99)
  }
  return write_documents(tmp_path / 'corpus.jsonl', documents)


def pairs(dataset, split='train'):
  rows = list(dataset.examples(split))
  return [(row['query'], row['passage'], row['passage_id']) for row in rows]


def test_titles_are_queries_of_their_texts(path):
  found = pairs(Documents(path, titles=2, clozes=0))
  assert len(found) % 2 == 0 and 80 * 2 <= len(found) < 99 * 2
  for query, passage, name in found:
    number = name.removeprefix('d').partition('#')[0]
    assert (query, passage) == (f'Title {number}', f'{TEXT} Number {number}.')


@pytest.mark.parametrize('removal', [0.0, 0.5, 1.0])
def test_sentences_are_queries_of_what_is_around_them(path, removal):
  found = pairs(Documents(path, titles=0, clozes=2, removal=removal))
  removed = 0
  for query, passage, name in found:
    number = name.removeprefix('d').partition('#')[0]
    # Of 'Number 1.' there are too few words for a query.
    assert query in SENTENCES
    whole = [*SENTENCES, f'Number {number}.']
    without = ' '.join(s for s in whole if s != query)
    assert passage in (without, ' '.join(whole))
    removed += passage == without
  assert removed / len(found) == pytest.approx(removal, abs=0.15)
  assert len({(name, query) for query, _, name in found}) == len(found)


def test_held_out_documents_are_not_trained_on(path):
  dataset = Documents(path)
  assert pairs(dataset) == pairs(Documents(path))
  train, held_out = (
      {name.partition('#')[0] for _, _, name in pairs(dataset, split)}
      for split in ('train', 'validation')
  )
  assert held_out and not train & held_out
  assert len(train | held_out) == 99
  for query, passage, _ in pairs(dataset, 'validation'):
    assert query in SENTENCES and query not in passage
  rows = list(dataset.examples('corpus'))
  assert len(rows) == 99
  assert rows[3]['passage'] == f'Title 3 {TEXT} Number 3.'


@pytest.mark.parametrize('document', [('Title alone', ''), ('', 'Short.')])
def test_nothing_to_train_on(tmp_path, document):
  path = write_documents(tmp_path / 'a.jsonl', {'a': document})
  with pytest.raises(UserError, match='no pair can be made of'):
    for split in ('train', 'validation'):
      pairs(Documents(path), split)
