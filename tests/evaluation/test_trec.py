"""TREC run files: read back, and read by trec_eval's code."""

import gzip
import urllib.parse

import numpy as np
import pytest

from dualenc_jax.evaluation import teacher_scores, trec
from dualenc_jax.retrieval.search import ranking
from dualenc_jax.utils.errors import UserError


def test_scores_come_back_bit_for_bit(tmp_path, monkeypatch):
  monkeypatch.setattr(trec, '_CHUNK', 700)
  rng = np.random.default_rng(0)
  bits = rng.integers(0, 2**32, (3, 1000), np.uint32)
  scores = bits.view(np.float32)
  scores = np.where(np.isfinite(scores), scores, np.float32(1e-45))
  indices = np.stack([rng.permutation(1000) for _ in range(3)])
  indices[2, 2:] = -1  # No hits.
  passage_ids = [f'é%s-{i}' for i in range(1000)]
  path = tmp_path / 'run'
  trec.write_run(
      path, ranking.Ranking(scores, indices), ['x', 'y', 'z'], passage_ids
  )
  run = trec.read_run(path)
  assert list(run) == ['x', 'y', 'z']
  for hits, row, order in zip(run.values(), scores, indices):
    assert list(hits) == [passage_ids[i] for i in order if i >= 0]
    read = np.array(list(hits.values()), np.float64).astype(np.float32)
    np.testing.assert_array_equal(read, row[: len(hits)])


ONE_HIT = ranking.Ranking(np.ones((1, 1), np.float32), np.zeros((1, 1), int))


def test_white_space_in_ids_is_escaped_as_in_urls(tmp_path):
  # Not what `str` alone takes for it: trec_eval reads qrels as they are.
  ids = 'a b', 'p\n', 'x\u2003%'
  trec.write_run(tmp_path / 'run', ONE_HIT, ids[:1], ids[1:2])
  line = (tmp_path / 'run').read_text()
  assert line == 'a%20b Q0 p%0A 1 1 dualenc\n'
  for name in ids:
    written = trec.field(name)
    assert len(written.encode().split()) == 1
    assert urllib.parse.unquote(written) == name
  run = trec.read_run(tmp_path / 'run')
  found = trec.numbers(run, ['none', 'a b'], ['none', 'p\n'], 'run')
  assert (found[0]['a%20b'], found[1]['p%0A']) == (1, 1)
  trec.check_ids('id', [*ids, 'a%20c'])
  with pytest.raises(UserError, match="'a b' and id 'a%20b' are the same"):
    trec.check_ids('id', [*ids, 'a%20b'])
  with pytest.raises(UserError, match="query id '' is empty"):
    trec.check_ids('query id', ['q', ''])


@pytest.mark.parametrize('line, message', [
    (b'q Q0 p 1 0.5', 'run:2: 5 fields. Expected the six'),
    *((f'q Q0 p 1 {x} t'.encode(), f"run:2: score '{x}'")
      for x in ('nan', '1_0', '\u0661')),
    (b'# by x', 'run:2: a comment'),
    (b'q Q0 first 1 0.5 t', "run:2: passage 'first' is repeated"),
])
def test_bad_lines(tmp_path, line, message):
  path = tmp_path / 'run'
  path.write_bytes(b'q Q0 first 1 0.5 t\n' + line + b'\n')
  with pytest.raises(UserError, match=message):
    trec.read_run(path)


def test_scores_of_ids_with_spaces_are_no_run(tmp_path):
  (tmp_path / 'scores').write_text('why 0\tA 5 7\t1\n')
  (found,) = teacher_scores.read_scores(tmp_path / 'scores')
  assert found == ('why 0', 'A 5 7', 1)


@pytest.mark.parametrize('name', ['run', 'run.gz'])
def test_blank_lines_a_byte_order_mark_and_gzip(tmp_path, name):
  content = '\ufeffq\tQ0 a 1 2 t\r\n\r\n  \nq Q0 b\u2003 2 1 t\n\n'.encode()
  packed = gzip.compress(content) if name == 'run.gz' else content
  (tmp_path / name).write_bytes(packed)
  assert trec.read_run(tmp_path / name) == {'q': {'a': 2, 'b\u2003': 1}}
