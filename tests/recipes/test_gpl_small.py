"""Table 2 of Thakur et al. 2022 as a recipe, from tiny models."""

import json

import adapted_models
import pytest

from dualenc_jax.commands import cli

ROWS = (
    'dense PQ GenQ GenQ+PQ GPL GPL+PQ BPR BPR+GenQ BPR+GPL JPQ JPQ+GenQ JPQ+GPL'
).split()


@pytest.mark.slow
def test_all_rows_are_measured(tmp_path, capfd):
  made = adapted_models.make(tmp_path)
  work = tmp_path / 'work'
  given = [
      'recipe', '--gin_file=recipes/gpl_small.gin', f'--work_dir={work}',
      f'--replace=source={made / "dense"}',
      f'--replace=generator={made / "generator"}',
      f'--replace=teacher={made / "teacher"}',
      f'--gin.CORPUS={str(made / "corpus")!r}',
      f'--gin.CORPUS_FILE={str(made / "corpus" / "corpus.jsonl")!r}',
      '--gin.QUERIES_PER_PASSAGE=3', '--gin.DEPTH=20', '--gin.NEGATIVES=4',
      '--gin.NUM_NEGATIVES=2', '--gin.LEAST_SPREAD=0.0', '--gin.CODEC=opq:16x4',
      '--gin.ADAPT_STEPS=3', '--gin.ADAPT_BATCH_SIZE=16', '--gin.BPR_STEPS=4',
      '--gin.GENQ_BATCH_SIZE=16', '--gin.JPQ_STEPS=4',
      '--gin.JPQ_BATCH_SIZE=16', '--gin.JPQ_DEPTH=20', '--gin.TAUGHT_DEPTH=5',
      '--gin.JPQ_LEARNING_RATE=1e-3', '--gin.JPQ_TEMPERATURE=0.05',
      '--gin.JPQ_ADAPT_STEPS=3',
  ]
  assert cli.main(given) == 0
  found = json.loads((work / 'comparison' / 'comparison.json').read_text())
  models = found['baseline'], *found['models']
  assert [model['name'] for model in models] == ROWS
  capfd.readouterr()
  # Nothing is done twice.
  assert cli.main(given) == 0
  said = ' '.join(capfd.readouterr().out.split())
  assert 'comparison as before' in said and ' ran ' not in said
