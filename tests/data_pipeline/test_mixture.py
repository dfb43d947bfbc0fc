"""Mixtures: batches by rate over several caches, from gin to the step."""

import collections
import json

import numpy as np
import pytest
import sentencepiece
import text_reading

from dualenc_jax.cli import config, saved_run
from dualenc_jax.data import Batches, Packed, Padded
from dualenc_jax.training.experiment import check_same_data, describe_data
from dualenc_jax.utils.errors import UserError

RATES = (0.5, 0.3, 0.2)


def caches():
  """Three; texts of cache i begin with the token 10 + i."""
  made = []
  for i, size in enumerate((40, 25, 9)):
    cache = text_reading.random_cache(size, seed=i)
    for name in ('query', 'passage', 'negative'):
      rows = getattr(cache, f'{name}_tokens')
      rows.values[rows.offsets[:-1]] = 10 + i
    made.append(cache)
  return made


@pytest.mark.parametrize('layout, cells', [(Padded(), 1), (Packed(), 4)])
def test_pairs_are_of_the_caches_at_their_rates(layout, cells):
  data = Batches(caches(), 40, 0, 16, 64, 2, RATES, layout, cells)
  counts = collections.Counter()
  for step in range(50):
    for query, passage, negatives, _ in text_reading.pairs_of(data(step), 2):
      source = query[0]
      assert passage[0] == source
      assert {text[0] for text in negatives if text} <= {source}
      counts[source - 10] += 1
  for source, rate in enumerate(RATES):
    # 2,000 positions of a random order of a block.
    assert counts[source] == pytest.approx(2000 * rate, abs=5 * 22)


def write(path, count):
  with path.open('w') as f:
    for n in range(count):
      row = {'query': f'find {n}', 'passage': f'{path.stem} {n}'}
      f.write(json.dumps(row) + '\n')
  return path


def build(tmp_path, *bindings):
  """An experiment over two files of pairs, mixed in gin."""
  file = tmp_path / 'mixture.gin'
  first, second = (
      write(tmp_path / f'{name}.jsonl', count)
      for name, count in (('first', 30), ('second', 10))
  )
  file.write_text(f'''
from __gin__ import dynamic_registration
from dualenc_jax import data
from dualenc_jax.data import readers

include 'runs/finetune.gin'
include 'models/tiny.gin'

TASK = @data.Mixture()
data.Mixture:
  tasks = [@first/readers.Pairs(), @second/readers.Pairs()]
  validation = @first/readers.Pairs()
first/readers.Pairs:
  train = '{first}'
  validation = '{first}'
second/readers.Pairs.train = '{second}'
VOCABULARY = 'python_code_8k'
VOCAB_SIZE = 8064
BATCH_SIZE = 16
''')
  return saved_run.build_experiment(
      [str(file)],
      [f'MODEL_DIR = "x"\nCACHE_DIR = {str(tmp_path / "tokens")!r}', *bindings],
      [],
  )


@pytest.mark.parametrize('flags, rates', [
    ([], (0.75, 0.25)),  # By the numbers of examples.
    (['--gin.data.Mixture.rates=[1, 4]'], (0.2, 0.8)),
])
def test_a_mixture_in_gin(tmp_path, flags, rates):
  experiment = build(tmp_path, *map(config.binding, flags))
  assert experiment.task.splits() == ('train', 'validation')
  batches = experiment.batches
  assert [len(cache) for cache in batches.caches] == [30, 10]
  np.testing.assert_allclose(batches.rates, rates)
  assert len(experiment.cache('validation')) == 30
  with pytest.raises(UserError, match="pairs.pairs has no split 'test'"):
    experiment.cache('test')


def test_tasks_have_prompts_of_their_own(tmp_path):
  flags = [
      "--gin.PROMPTS={'ask': 'question: ', 'say': 'sentence: '}",
      "--gin.data.Mixture.prompts=['ask', None]",
      '--gin.QUERY_PREFIX=query: ',
  ]
  experiment = build(tmp_path, *map(config.binding, flags))
  file = experiment.tokenizer.vocabulary.file
  processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
  caches = [*experiment.caches, experiment.cache('validation')]
  for cache, prefix in zip(caches, ('question: ', 'query: ', 'question: ')):
    for row in range(len(cache)):
      text = prefix + cache.query_texts.text(row)
      expected = [*processor.encode(text)[:63], 1]
      assert cache.query_tokens.row(row).tolist() == expected
  position = describe_data(experiment)
  assert position['query_prefixes'] == ['question: ', 'query: ']
  other = build(tmp_path, *map(config.binding, flags[::2]))
  with pytest.raises(UserError, match='query_prefix'):
    check_same_data(describe_data(other), position)
  with pytest.raises(UserError, match='query_prefixes: .* -> None'):
    check_same_data(
        position, {n: x for n, x in position.items() if 'prefix' not in n}
    )
  unknown = config.binding("--gin.data.Mixture.prompts=['aks', None]")
  with pytest.raises(UserError, match="prompt 'aks'. Did you mean 'ask'"):
    build(tmp_path, config.binding(flags[0]), unknown).batches
