"""A corpus with a blank passage is usable."""

import json

import numpy as np
import pytest
import tiny_beir
from tiny_evaluation import link_model

from dualenc_jax.cli import data_check, encode, evaluate
from dualenc_jax.retrieval.index import Index
from dualenc_jax.utils.errors import UserError


def checked(folder, *flags):
  data_check.main([*flags, f'--output_dir={folder}'])
  return json.loads((folder / 'report.json').read_text())['findings']


def test_a_blank_passage_is_one_wherever_it_is_read(tmp_path, capsys):
  tiny = tiny_beir.make(0)
  tiny.corpus['blank'] = ''
  tiny.write(tmp_path / 'mine')
  beir = [f'--gin.BEIR_FOLDER={tmp_path / "mine"}']
  found = checked(tmp_path / 'report', 'beir', *beir)
  (blank,) = (f for f in found if 'without a text' in f['what'])
  assert blank['level'] == 'suspicious'
  assert blank['places'][0].endswith('corpus.jsonl:13')
  model = f'--model_dir={link_model(tmp_path)}'
  task = ['--gin_file=tasks/beir.gin', *beir]
  for name, flags in (('a', task), ('b', [f'--corpus={tmp_path / "mine"}'])):
    encode.main([model, *flags, f'--index_dir={tmp_path / name}'])
  ours, other = (Index.open(tmp_path / name).embeddings[:] for name in 'ab')
  assert len(ours) == 13
  np.testing.assert_array_equal(ours, other)
  # What an end of a text alone is, no row of zeros.
  assert np.linalg.norm(ours[-1]) == pytest.approx(1, abs=1e-5)
  evaluate.main([model, *task, f'--output_dir={tmp_path / "out"}'])
  ranked = (tmp_path / 'out' / 'run.trec').read_text()
  assert ' blank ' in ranked
  # But nothing can be learnt of it, nor asked.
  text = 'query-id\tcorpus-id\tscore\nq0\tblank\t1\n'
  (tmp_path / 'mine' / 'qrels' / 'train.tsv').write_text(text)
  found = checked(tmp_path / 'report', 'beir', *beir, '--split=corpus')
  with pytest.raises(UserError, match='Unusable: train'):
    checked(tmp_path / 'report', 'beir', *beir)
