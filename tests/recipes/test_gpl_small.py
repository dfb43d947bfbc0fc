"""Table 2 of Thakur et al. 2022 as a recipe, from tiny models."""

import json
import re
import shutil

import adapted_models
import pytest

from dualenc_jax.commands import cli

ROWS = (
    'dense PQ GenQ GenQ+PQ GPL GPL+PQ BPR BPR+GenQ BPR+GPL JPQ JPQ+GenQ JPQ+GPL'
).split()


@pytest.fixture(scope='module')
def made():
  return adapted_models.shared()


def flags(work, made):
  return [
      'recipe', '--gin_file=recipes/gpl_small.gin', f'--work_dir={work}',
      f'--replace=source={made / "dense"}',
      f'--replace=generator={made / "generator"}',
      f'--replace=teacher={made / "teacher"}',
      f'--gin.CORPUS={str(made / "corpus")!r}',
      f'--gin.CORPUS_FILE={str(made / "corpus" / "corpus.jsonl")!r}',
      '--gin.CODEC=opq:16x4',
  ]


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_all_rows_are_measured(made, tmp_path, capfd):
  work = tmp_path / 'work'
  given = [
      *flags(work, made),
      '--gin.QUERIES_PER_PASSAGE=3', '--gin.DEPTH=20', '--gin.NEGATIVES=4',
      '--gin.NUM_NEGATIVES=2', '--gin.LEAST_SPREAD=0.0',
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ('more', 'message'),
    [
        (['--gin.CODEC=int8'], 'jpq: Stage source_codes makes codes by int8'),
        (['--gin.CODEC=pq:7'], 'jpq: pq:7 of vectors of dim 128: the number'),
        (['--gin.CODEC=foo:7'], "source_codes: No codec is called 'foo'"),
        (['--replace=teacher={foreign}'], 'jpq_gpl: .* of another vocabulary'),
    ],
)
def test_what_a_late_stage_would_refuse_is_told_first(
    made, tmp_path, capfd, more, message
):
  foreign = tmp_path / 'foreign'
  shutil.copytree(made / 'teacher', foreign)
  for meta in foreign.glob('checkpoints/*/meta/metadata'):
    saved = json.loads(meta.read_text())
    saved['data']['vocabulary'] = 64 * '0'
    del saved['digests'], saved['sha256']
    meta.write_text(json.dumps(saved))
  paths = {path.name: path for path in (*made.iterdir(), foreign)}
  work = tmp_path / 'work'
  given = [*flags(work, made), *(flag.format_map(paths) for flag in more)]
  assert cli.main(given) == 2
  said = capfd.readouterr()
  assert re.search(message, said.err)
  assert '$ dualenc' not in said.out and not work.exists()
