"""A split re-ranker from training to the scores of stored states."""

import json

import jax
import numpy as np
import pytest
import tiny_beir
import tiny_run

from dualenc_jax.checkpoints import loading
from dualenc_jax.cli import encode, evaluate, rerank, train
from dualenc_jax.evaluation.trec import read_run
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A set, a run over it, and a split re-ranker, in one folder."""
  folder = tmp_path_factory.mktemp('split')
  data = tiny_beir.make(0)
  data.write(folder / 'beir')
  rng = np.random.default_rng(0)
  (folder / 'run.trec').write_text(''.join(
      f'{query} Q0 {name} 0 {20 - i} x\n' for query in data.queries
      for i, name in enumerate(rng.permutation(sorted(data.corpus))[:9])
  ))
  train.main([
      *tiny_run.flags(folder, '--gin_file=architectures/split_ranker.gin'),
      '--gin.NUM_NEGATIVES=1', '--gin.NUM_STATES=3', '--gin.EVAL_EVERY=4',
      '--gin.STEPS=4', '--gin.LEARNING_RATE=1e-2',
      f'--model_dir={folder / "model"}',
  ])
  return folder, data


def run(folder, output, *more):
  rerank.main([
      f'--teacher={folder / "model"}', f'--run={folder / "run.trec"}',
      '--tasks=beir', f'--gin.BEIR_FOLDER={folder / "beir"}', '--split=test',
      f'--output_dir={output}', *more,
  ])
  return read_run(output / 'run.trec')


def index(folder, *more):
  path = folder / f'index{len(more)}'
  encode.main([
      f'--model_dir={folder / "model"}', f'--corpus={folder / "beir"}',
      f'--index_dir={path}', *more,
  ])
  return path


def test_scores_are_those_of_each_pair_alone(made, tmp_path):
  folder, data = made
  found = run(folder, tmp_path / 'own')
  teacher = loading.load_teacher(folder / 'model')
  model, tokenizer = teacher.model.embedder.model, teacher.model.tokenizer
  score = jax.jit(model.apply)
  for query, hits in found.items():
    for passage, value in hits.items():
      (wanted,) = score(
          {'params': teacher.model.params},
          tokenizer.encode_queries([data.queries[query]]).padded([0], 32),
          tokenizer.encode_passages([data.corpus[passage]]).padded([0], 64),
      )
      assert value == pytest.approx(float(wanted), abs=2e-5)
  logged = tiny_run.logged(folder / 'model', 'validation')
  assert {'MRR@10'} <= {*logged[-1]}

  # The states are stored once, as they are or as codes.
  stored = index(folder)
  again = run(folder, tmp_path / 'stored', f'--teacher_index={stored}')
  codes = index(folder, '--codec=fp16')
  rough = run(folder, tmp_path / 'codes', f'--teacher_index={codes}')
  differ = 0
  for query, hits in found.items():
    for passage, value in hits.items():
      assert again[query][passage] == pytest.approx(value, abs=2e-5)
      assert rough[query][passage] == pytest.approx(value, abs=1e-2)
      differ += rough[query][passage] != value
  assert differ > len(found)
  facts = json.loads((tmp_path / 'codes/metrics.json').read_text())
  assert facts['teacher']['states'] == 'float16'
  with pytest.raises(UserError, match='another task or .*, by teacher in'):
    run(folder, tmp_path / 'stored', f'--teacher_index={codes}')


def test_what_it_cannot_do(made, tmp_path):
  folder, _ = made
  model = f'--model_dir={folder / "model"}'
  with pytest.raises(UserError, match='rerank --teacher='):
    evaluate.main([model, f'--output_dir={tmp_path}'])
  with pytest.raises(UserError, match='rerank --teacher='):
    index(folder, '--tower=query')
  with pytest.raises(UserError, match='--dim: .* has states'):
    index(folder, '--dim=8')
  codes = index(folder, '--codec=binary', '--shard_size=100')
  with pytest.raises(UserError, match='binary, which do not stand for states'):
    run(folder, tmp_path / 'out', f'--teacher_index={codes}')
  with pytest.raises(UserError, match='file of scores, which takes no'):
    run(
        folder, tmp_path / 'out', f'--teacher={folder / "run.trec"}',
        f'--teacher_index={codes}',
    )
  other = folder / 'other'
  other.mkdir()
  (other / 'corpus.jsonl').write_text('{"_id": "x", "text": "find zone"}\n')
  path = tmp_path / 'index'
  encode.main([
      model, f'--corpus={other / "corpus.jsonl"}', f'--index_dir={path}'
  ])
  with pytest.raises(UserError, match='lacks .* of the passages, such as'):
    run(folder, tmp_path / 'out', f'--teacher_index={path}')
