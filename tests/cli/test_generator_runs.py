"""A generator through the program: trained, loaded, gone on from, refused."""

import json

import numpy as np
import pytest
import tiny_run

from dualenc_jax.cli import check, main as cli, train
from dualenc_jax.pipelines.generation import generator as generators
from dualenc_jax.retriever import Retriever
from dualenc_jax.utils.errors import UserError

pytestmark = pytest.mark.nightly
STEPS = 80
# What a word is to become: another one.
WRITTEN = dict(zip(tiny_run.WORDS, tiny_run.WORDS[5:] + tiny_run.WORDS[:5]))


@pytest.fixture(scope='module')
def flags(tmp_path_factory):
  """Of a run that learns to write another word for the one that it reads."""
  path = tmp_path_factory.mktemp('generator') / 'words.jsonl'
  rows = [{'query': q, 'passage': p} for p, q in WRITTEN.items()]
  path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return [
      '--gin_file=runs/doc2query.gin', *tiny_run.small_flags(STEPS),
      f'--gin.TRAIN_FILE={path}', f'--gin.VALIDATION_FILE={path}',
      '--gin.VOCABULARY=python_code_8k', '--gin.VOCAB_SIZE=8064',
      '--gin.LEARNING_RATE=1e-2', f'--gin.EVAL_EVERY={STEPS // 2}',
  ]


@pytest.fixture(scope='module')
def trained(flags, tmp_path_factory):
  model = tmp_path_factory.mktemp('trained') / 'model'
  train.main([*flags, '--gin.KEEP_BEST=perplexity', f'--model_dir={model}'])
  return model


def test_it_learns_what_to_write(trained):
  losses = [line['loss'] for line in tiny_run.logged(trained, 'train')]
  assert losses[-1] < 0.2 * losses[0]
  before, _, after = tiny_run.logged(trained, 'validation')
  assert before['token_accuracy'] < 0.3 and after['token_accuracy'] > 0.9
  assert after['perplexity'] < 2 < before['perplexity']
  meta = trained / 'checkpoints' / str(STEPS) / 'meta' / 'metadata'
  best = json.loads(meta.read_text())['notes']['best']
  assert best['metric'] == 'perplexity' and best['step'] == STEPS


def test_what_is_loaded_writes_it(trained, tmp_path):
  words, out = tmp_path / 'words.tsv', tmp_path / 'out'
  words.write_text(''.join(f'{word}\t{word}\n' for word in WRITTEN))
  assert cli.main([
      'generate', f'--generator={trained}', f'--corpus={words}',
      f'--output_dir={out}', '--temperature=0', '--queries_per_passage=1',
      '--batch_size=8',
  ]) == 0
  found = {}
  for line in (out / 'shards' / '00000.jsonl').read_text().splitlines():
    row = json.loads(line)
    found[row['_id']] = row['queries'][0][0]
  right = [found[word] == query for word, query in WRITTEN.items()]
  assert np.mean(right) > 0.9
  assert generators.load(trained, length=40).tokenizer.passage_length == 40
  with pytest.raises(UserError, match='has its own vocabulary'):
    generators.load(trained, 'python_code_8k')


def test_another_run_starts_from_it(flags, trained, capsys):
  """With its decoder, or, to be a dual encoder, without."""

  def said(*more):
    check.main([
        *flags, f'--gin.INITIAL_CHECKPOINT_PATH={trained}', '--no_compile',
        *more,
    ])
    lines = capsys.readouterr().out.splitlines()
    (line,) = (x for x in lines if x.startswith('Starting from'))
    return line

  assert 'fresh' not in said()
  line = said(
      '--gin_file=architectures/sde.gin', '--gin_file=losses/softmax.gin',
      '--gin.OBJECTIVE=@objectives.Contrastive()',
  )
  assert 'fresh: projection/kernel' in line and 'of decoder' in line


def test_a_report_asks_for_nothing_that_it_cannot_have(trained):
  assert cli.main(['report', f'--model_dir={trained}']) == 0
  page = (trained / 'report.html').read_text()
  assert 'token_accuracy' in page and 'validation/log_likelihood' in page
  assert 'dualenc evaluate' not in page and 'dualenc analyze' not in page


def test_what_embeds_nothing_is_refused(trained, tmp_path, capsys):
  asked = ['rerank', f'--teacher={trained}', '--run=x', '--tasks=beir/scifact']
  for argv, message in (
      (['encode', f'--model_dir={trained}'], '`dualenc generate --gen'),
      (
          ['convert', str(trained), '--to=hf',
           f'--output_dir={tmp_path / "out"}'], 'is a generator',
      ),
      (
          [*asked, f'--gin.DATA_ROOT={tmp_path}'],
          'is a generator, not a cross-encoder',
      ),
  ):
    assert cli.main(argv) == 2
    assert message in capsys.readouterr().err
  with pytest.raises(UserError, match='is a generator, which writes queries'):
    Retriever.from_dir(trained)
