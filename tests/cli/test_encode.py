"""`dualenc encode` and `dualenc search` on a tiny model."""

import io
import json
import pathlib
import signal
import sys
import time

import brute_force
import numpy as np
import pytest
import tiny_evaluation
import tiny_run
import two_hosts

from dualenc_jax.cli import encode, saved_run, search
from dualenc_jax.retrieval.index import Index
from dualenc_jax.utils.errors import RUN_AGAIN, UserError

ROOT = pathlib.Path(__file__).parents[2]
TOY = ROOT / 'tests' / 'data' / 'beir' / 'toy'
ROWS = 96  # Passages of the train split, five shards of 20.


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> pathlib.Path:
  """A model_dir after two steps."""
  return tiny_evaluation.copy_model(tmp_path_factory.mktemp('run') / 'model')


@pytest.fixture(scope='module')
def whole(model) -> pathlib.Path:
  """An index that was made in one go."""
  run(model, model.parent / 'whole')
  return model.parent / 'whole'


def run(model, index, *flags):
  encode.main([
      f'--model_dir={model}', f'--index_dir={index}', '--shard_size=20', *flags
  ])


def tree(folder):
  return {
      str(path.relative_to(folder)): path.read_bytes()
      for path in sorted(folder.rglob('*'))
      if path.is_file()
  }


def test_the_index_holds_the_towers_vectors(model, whole):
  index = Index.open(whole)
  file = tiny_evaluation.shared_model().with_name('train.jsonl')
  texts = {
      row: json.loads(line)['passage']
      for row, line in enumerate(file.read_text().splitlines())
  }
  assert len(index) == ROWS == len(texts)
  assert [index.passage(row).text for row in texts] == [*texts.values()]
  _, expected = brute_force.towers(model, texts, {'q': 'x'})
  np.testing.assert_allclose(
      index.embeddings[:], expected, rtol=1e-4, atol=1e-5
  )
  header, trained = index.header, saved_run.load(str(model))
  facts = header.tower, header.dtype, header.tokens
  assert facts == ('passage', 'float32', 16)
  names = 'run_id', 'checkpoint_step', 'model_dir', 'compute_dtype'
  assert [header.provenance[name] for name in names] == [
      trained.provenance['run_id'], 2, 'model', 'float32'
  ]


@pytest.mark.nightly
def test_sigterm_ends_two_hosts_and_they_go_on(model, tmp_path):
  index, partial = tmp_path / 'index', tmp_path / 'index.partial'
  flags = f'--model_dir={model}', f'--index_dir={index}', '--shard_size=1'
  hosts = two_hosts.start(
      'encode', *flags, devices=1, environs=two_hosts.impatient(tmp_path)
  )
  while len([*partial.glob('shard-*')]) < 3:
    assert all(host.poll() is None for host in hosts)
    time.sleep(0.002)
  hosts[1].send_signal(signal.SIGTERM)
  (other, said), (status, _) = two_hosts.ends(hosts, 60)
  assert status == -signal.SIGTERM and other == RUN_AGAIN
  assert 'error: host 1 (' in said and ') has died or does not answer' in said
  for said in two_hosts.run('encode', *flags, devices=1):
    assert '96 passages in' in said
  run(model, tmp_path / 'whole', '--shard_size=1')
  assert tree(index) == tree(tmp_path / 'whole')


def test_a_corpus_and_queries_of_their_own(model, tmp_path, capsys):
  run(model, tmp_path / 'index', f'--corpus={TOY}')
  run(model, tmp_path / 'queries', f'--corpus={TOY}', '--tower=query')
  out = capsys.readouterr().out
  assert '5 passages in' in out and '3 queries in' in out
  index = Index.open(tmp_path / 'index')
  assert list(index.ids) == ['d1', 'd2', 'd3', 'd4', '5']
  assert index.passage(0).text == 'Tides The moon pulls the sea twice a day.'
  queries = Index.open(tmp_path / 'queries', {'tower': 'query', 'tokens': 8})
  assert list(queries.ids) == ['q1', 'q2', 'q3']
  with pytest.raises(UserError, match="tower is 'query', expected 'passage'"):
    search.main([
        'x', f'--model_dir={model}', f'--index_dir={tmp_path / "queries"}'
    ])


def test_a_corpus_needs_no_files_of_the_task(model, tmp_path):
  (tmp_path / 'q.tsv').write_text('1\tfind map\nlost\n2\tfind xml\n')
  flags = '--gin_file=tasks/msmarco.gin', '--gin.DATA_ROOT=/none'
  own = f'--corpus={tmp_path / "q.tsv"}', '--tower=query', *flags
  with pytest.raises(UserError, match='q.tsv:2: 1 co.*by --skip_bad_rows[.]$'):
    run(model, tmp_path / 'index', *own)
  run(model, tmp_path / 'index', *own, '--skip_bad_rows')
  assert list(Index.open(tmp_path / 'index').ids) == ['1', '2']
  (tmp_path / 'none.jsonl').touch()
  with pytest.raises(UserError, match='none.jsonl has no texts'):
    run(model, tmp_path / 'none', f'--corpus={tmp_path / "none.jsonl"}')
  with pytest.raises(UserError, match="'msmarco' has no splits, as its files"):
    encode.main([f'--model_dir={model}', *flags])


@pytest.mark.parametrize(
    'flags, message',
    [
        ('--tower=query', 'Give --index_dir'),
        ('--corpus=/none --index_dir=x', '/none does not exist'),
    ],
)
def test_flags_that_do_not_go_together(model, flags, message):
  with pytest.raises(UserError, match=message):
    encode.main([f'--model_dir={model}', *flags.split()])


def test_the_models_own_index_is_made_when_it_is_due(model, tmp_path, capsys):
  own = model / 'index'

  def searched(*flags):
    search.main(['find map', f'--model_dir={model}', *flags])
    return capsys.readouterr()

  first = searched()
  assert 'Encoding the passages of split train, once' in first.err
  before = tree(own)
  second = searched()
  assert second.out == first.out and 'Encoding' not in second.err
  # That of another checkpoint is replaced; so is one that is damaged.
  path = own / 'header.json'
  header = json.loads(path.read_text())
  header['provenance']['tower_sha256']['encoder'] = 'of step 1'
  path.write_text(json.dumps(header))
  third = searched()
  assert third.out == first.out
  assert 'by another passage tower' in third.err
  assert tree(own) == before
  (own / 'shard-00000' / 'ids.txt').unlink()
  assert searched().out == first.out and tree(own) == before
  with pytest.raises(UserError, match="split is 'train', expected 'test'"):
    encode.main([f'--model_dir={model}', '--split=test'])
  assert tree(own) == before
  # So is that of a file whose passages are now others, as many as before.
  other = tiny_run.write_pairs(tmp_path / 'other.jsonl', ROWS, seed=5)
  assert searched(f'--gin.TRAIN_FILE={other}').out != first.out
  texts = {json.loads(line)['passage'] for line in other.open()}
  index = Index.open(own)
  assert {index.passage(row).text for row in range(ROWS)} == texts


def test_what_search_refuses_and_takes(model, whole, capsys, monkeypatch):
  flags = [f'--model_dir={model}', f'--index_dir={whole}']
  with pytest.raises(UserError, match='The query is empty'):
    search.main([' ', *flags])
  # More hits than passages, and blank lines.
  monkeypatch.setattr(sys, 'stdin', io.StringIO('find a map\n\nfind xml\n'))
  search.main([*flags, '--k=1000'])
  assert len(capsys.readouterr().out.splitlines()) == 2 * (1 + 2 * ROWS)
