"""`dualenc generate`, as a user runs it."""

from collections import Counter
import json
import shutil

import hugging_face_models
import pytest
import small_vocabulary
import torch
import two_hosts

from dualenc_jax.cli import main as cli
from dualenc_jax.data.readers import Beir
from dualenc_jax.pipelines.generation import (
  corpus as corpus_lib,
  shards,
)
from dualenc_jax.pipelines.generation.generator import Query

ROWS = 384  # Of the vocabulary of 300 pieces.
THREE = '--queries_per_passage=3'
FILES = 'corpus.jsonl', 'qgen-queries.jsonl', 'qgen-qrels/train.tsv'


@pytest.fixture(scope='module')
def generator(tmp_path_factory):
  folder = tmp_path_factory.mktemp('generator')
  torch.manual_seed(0)
  model = hugging_face_models.untied(
      'T5ForConditionalGeneration', feed_forward='gated-gelu', vocab_size=ROWS,
      decoder_start_token_id=0,
  )
  model.save_pretrained(folder)
  small_vocabulary.write(folder / 'spiece.model')
  return folder


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """40 passages, one of them long, and one empty."""
  path = tmp_path_factory.mktemp('corpus') / 'corpus.jsonl'
  with path.open('w') as file:
    for i in range(41):
      text = f'Passage {i} is about number {i * i}. ' * (40 if i == 7 else 1)
      row = {'_id': f'p{i}', 'title': f'Of {i}', 'text': text.strip()}
      if i == 9:
        row |= {'title': '', 'text': ' '}
      file.write(json.dumps(row) + '\n')
  return path


def command(generator, corpus, out, *flags):
  return [
      'generate', f'--generator={generator}', f'--corpus={corpus}',
      f'--output_dir={out}', '--query_length=8', '--batch_size=8',
      '--temperature=2', '--passage_length=64', *flags,
  ]


def run(*given):
  return cli.main(command(*given))


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
  monkeypatch.setattr(shards, 'SHARD', 16)
  monkeypatch.setattr(shards, '_JUDGED', 16)


@pytest.fixture(scope='module')
def written(generator, corpus, tmp_path_factory):
  out = tmp_path_factory.mktemp('out') / 'generated'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(shards, 'SHARD', 16)
    assert run(generator, corpus, out, THREE) == 0
  return out


def contents(folder):
  return [(folder / name).read_bytes() for name in FILES]


def rows(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_files_are_those_of_gpl(written, corpus):
  queries = rows(written / FILES[1])
  assert [q['_id'] for q in queries] == [
      f'genQ{i}' for i in range(1, len(queries) + 1)
  ]
  assert all(q['text'].strip() and q['metadata'] for q in queries)
  head, *lines = (written / FILES[2]).read_text().splitlines()
  assert head == 'query-id\tcorpus-id\tscore'
  assert [line.split('\t')[0] for line in lines] == [q['_id'] for q in queries]
  texts = {r['_id']: (r['title'], r['text']) for r in rows(written / FILES[0])}
  given = {r['_id']: (r['title'], r['text']) for r in rows(corpus)}
  assert texts == {n: t for n, t in given.items() if n != 'p9'}
  task = Beir(folder=str(written), prefix='qgen')
  pairs = list(task.examples('train'))
  assert len(pairs) == len(queries)
  assert pairs[0]['passage'].startswith('Of 0 Passage 0 is about')
  # Three of each, but for those that are empty or repeated.
  facts = json.loads((written / 'generated.json').read_text())
  assert len(queries) + sum(facts['counts'].values()) == 3 * 40
  assert '1 of' not in facts['counts']


def test_a_killed_run_goes_on_with_the_same_result(
    generator, corpus, written, tmp_path, capsys
):
  out = tmp_path / 'killed'
  shutil.copytree(written, out)
  for name in (*FILES, 'shards/00000.jsonl'):
    (out / name).unlink()
  assert run(generator, corpus, out, THREE) == 0
  # The eighth, which is of that shard.
  assert '1 passages have more than 64 tokens' in capsys.readouterr().err
  assert contents(out) == contents(written)


@pytest.mark.nightly
def test_processes_that_join_write_what_one_writes(
    generator, tmp_path, monkeypatch
):
  monkeypatch.undo()  # Shards as they are: two, one for each host.
  corpus = tmp_path / 'corpus.jsonl'
  lines = [
      json.dumps({'_id': f'p{i}', 'text': f'About {i}.'})
      for i in range(shards.SHARD + 76)
  ]
  corpus.write_text('\n'.join(lines))
  one, two = tmp_path / 'one', tmp_path / 'two'
  flag = '--queries_per_passage=1'
  assert run(generator, corpus, one, flag) == 0
  said = two_hosts.run(*command(generator, corpus, two, flag), devices=1)
  assert ['Written to' in each for each in said] == [True, False]
  for name in (*FILES, 'shards/00000.jsonl', 'shards/00001.jsonl'):
    assert (one / name).read_bytes() == (two / name).read_bytes(), name
  assert 0 < len(rows(one / FILES[1])) <= len(lines)


def test_some_passages_have_the_queries_they_have_among_all(
    generator, corpus, written, tmp_path
):
  some = tmp_path / 'some.jsonl'
  some.write_text(''.join(corpus.read_text().splitlines(True)[3:8]))
  assert run(generator, some, tmp_path, '--queries_per_passage=2') == 0
  few, every = (
      {
          row['_id']: [q[0] for q in row['queries']]
          for path in sorted((folder / 'shards').glob('*.jsonl'))
          for row in rows(path)
      }
      for folder in (tmp_path, written)
  )
  assert len(few) == 5
  assert few == {name: every[name][:2] for name in few}


def test_queries_that_are_left_out_are_counted():
  texts = [(0, 'what is it'), (0, ''), (0, 'What is it?'), (1, 'what is it')]
  queries = [Query(p, i, text, -1.0, True) for i, (p, text) in enumerate(texts)]
  counts = Counter()
  kept = shards.keep_distinct(queries, counts)
  assert [query.number for query in kept] == [0, 3]
  assert sorted(counts.values()) == [1, 1]


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--seed=1'], 'seed: 0 -> 1'),
        (['--passage_length=513'], 'expected at most 512'),
        (['--temperature=0'], '--queries_per_passage=3'),
    ],
)
def test_other_queries_and_odd_flags_are_refused(
    generator, corpus, written, capsys, flags, message
):
  before = contents(written)
  assert run(generator, corpus, written, THREE, *flags) == 2
  assert message in capsys.readouterr().err
  assert contents(written) == before


def test_a_changed_corpus_is_refused_unless_overwritten(
    generator, corpus, written, tmp_path, capsys
):
  out, other = tmp_path / 'out', tmp_path / 'other.jsonl'
  shutil.copytree(written, out)
  other.write_text(corpus.read_text().replace('about', 'on'))
  assert run(generator, other, out, THREE) == 2
  assert 'corpus: ' in capsys.readouterr().err
  assert run(generator, other, out, THREE, '--overwrite') == 0
  assert 'is on number' in (out / FILES[0]).read_text()
  # Nor are files that others have made.
  own = tmp_path / FILES[0]
  own.write_text('mine')
  assert run(generator, other, tmp_path, THREE) == 2
  assert 'corpus.jsonl exists, but no gen' in capsys.readouterr().err
  assert own.read_text() == 'mine'


@pytest.mark.parametrize(
    ('lines', 'message'),
    [
        (['{"_id": "a\\tb", "text": "One."}'], "the id 'a\\tb'"),
        (['{"_id": "a", "text": " "}'], 'no passage with text'),
    ],
)
def test_bad_corpora_are_named(generator, tmp_path, capsys, lines, message):
  path = tmp_path / 'bad.jsonl'
  path.write_text('\n'.join(lines) + '\n')
  assert run(generator, path, tmp_path / 'out') == 2
  assert message in capsys.readouterr().err


def test_what_is_no_query_is_told():
  passages = [f'one two three four {i}' for i in range(50)]
  for queries, message in (
      (['', '', '', 'c'], "are '', whatever the passage says"),
      (['a', 'a', 'a', 'c'], "are 'a', whatever the passage says"),
  ):
    pairs = [(query, passage) for passage in passages for query in queries]
    assert message in shards.find_problem(pairs)
  fine = ['a', '', 'b', 'one two']
  pairs = [(q, p) for p in passages for q in fine]
  assert shards.find_problem(pairs) is None
  assert shards.find_problem([('a', 'b'), ('a', 'c')]) is None


def test_queries_may_lie_beside_their_corpus(generator, corpus, tmp_path):
  own = tmp_path / 'corpus.jsonl'
  shutil.copy(corpus, own)
  flag = '--queries_per_passage=2'
  assert run(generator, tmp_path, tmp_path, flag) == 0
  assert own.read_bytes() == corpus.read_bytes()
  before = contents(tmp_path)
  # Overwriting what is the same makes nothing anew.
  stamp = (tmp_path / 'shards' / '00000.jsonl').stat().st_mtime_ns
  assert run(generator, tmp_path, tmp_path, flag, '--overwrite') == 0
  assert contents(tmp_path) == before
  assert (tmp_path / 'shards' / '00000.jsonl').stat().st_mtime_ns == stamp
  (tmp_path / 'shards' / shards.FACTS).unlink()
  assert run(generator, tmp_path, tmp_path, flag) == 2


def test_gpls_budget():
  """250,000 queries, three a passage or more; else three of some passages."""
  for passages, chosen, count in (
      (5_183, 5_183, 49), (83_333, 83_333, 4), (83_334, 83_334, 3),
      (200_000, 83_334, 3),
  ):
    some, each = corpus_lib.budget(range(passages), None, seed=0)
    assert (len(some), each) == (chosen, count)
    assert sorted({*some}) == [*some]
