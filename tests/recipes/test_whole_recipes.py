"""Shipped recipes from end to end; that of GPL is in `test_adapt`."""

import json

import interrupted
import numpy as np
import pytest
import shared_runs
from test_shipped_recipes import grid_flags, pair_flags
import tiny_beir
import tiny_evaluation
import tiny_run

from dualenc_jax.checkpoints import formats
from dualenc_jax.cli import main as cli, recipe, train
from dualenc_jax.evaluation.results.result_files import read_per_query

JPQ = [
    '--gin.CODEC=opq:16x4', '--gin.JPQ_STEPS=4', '--gin.JPQ_BATCH_SIZE=16',
    '--gin.JPQ_LEARNING_RATE=1e-3', '--gin.JPQ_TEMPERATURE=0.05',
    '--gin.JPQ_DEPTH=20',
]


def run(capfd, name, work, *flags):
  """Runs a recipe in this process; again, it does nothing."""
  given = [
      'recipe', f'--gin_file=recipes/{name}.gin', f'--output_dir={work}', *flags
  ]
  assert cli.main(given) == 0
  capfd.readouterr()
  assert cli.main(given) == 0
  said = ' '.join(capfd.readouterr().out.split())
  assert 'as before' in said and ' ran ' not in said


def read(folder, name='metrics'):
  return json.loads((folder / f'{name}.json').read_text())


@pytest.mark.nightly
@pytest.mark.usefixtures('in_process')
def test_pair_ends_the_same_if_it_is_killed(tmp_path, capfd):
  given = ['recipe', '--gin_file=recipes/pair.gin', *pair_flags(tmp_path)]
  # A teacher of a few steps, whose logits are about -2.1.
  given.append('--gin.CALIBRATION=20,42')

  def start(work):
    return interrupted.start(*given, f'--output_dir={work}')

  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  assert start(whole).wait() == 0
  # In stages of each kind.
  for sign in (
      'mined', 'teacher/checkpoints/7', 'labels/scores.tsv',
      'finetuned/checkpoints/1',
  ):
    interrupted.kill_at(start(killed), killed, sign)
  assert start(killed).wait() == 0
  for name in (
      'mined/pairs.jsonl', 'labels/pairs.jsonl', 'relabelled/pairs.jsonl',
      'evaluation/run.trec',
  ):
    assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
  assert read(whole / 'evaluation')['metrics']['MRR'] > 0
  rows = (whole / 'labels/pairs.jsonl').read_text().splitlines()
  assert {json.loads(row)['query_id'][0] for row in rows} == {'u'}
  # From the weights of the stage before.
  ends, starts = (
      read_per_query(whole / name).values['MRR']
      for name in (
          'pretrained/validation/after.tsv', 'finetuned/validation/before.tsv'
      )
  )
  np.testing.assert_array_equal(ends, starts)
  # Of another loss only what it trains is made anew.
  assert cli.main([*given, f'--output_dir={whole}', '--gin.ALPHA=0.5']) == 0
  lines = capfd.readouterr().out.splitlines()
  states = dict(line.split()[:2] for line in lines if len(line.split()) > 1)
  assert [name for name, state in states.items() if state == 'ran'] == [
      'pretrained', 'finetuned', 'evaluation'
  ]


@pytest.mark.nightly
@pytest.mark.usefixtures('in_process')
def test_a_grid_of_which_a_cell_fails(tmp_path, capfd, monkeypatch):
  """2 x 2 cells: one is killed by the system, then all by a signal."""
  work, execute = tmp_path / 'work', recipe._execute
  given = [
      'recipe', '--gin_file=recipes/samtone.gin', f'--output_dir={work}',
      *grid_flags(tmp_path), '--sweep=SIZE=bag', '--sweep=SET=pairs',
      '--sweep=ARCHITECTURE=ade_spl,sde', '--sweep=LOSS=softmax,samtone',
      '--until=sizes',
  ]

  def start(stage='', status=0):
    """Runs it; a stage ends at once with a status. The state of each stage."""

    def execute_or_end(search_paths, argv):
      ends = stage and any(word.endswith(f'/{stage}') for word in argv[:2])
      if ends and status == 75:
        raise SystemExit(status)
      return status if ends else execute(search_paths, argv)

    monkeypatch.setattr(recipe, '_execute', execute_or_end)
    ended = 0
    try:
      assert cli.main(given) == 0
    except SystemExit as e:
      ended = e.code
    said = capfd.readouterr()
    lines = map(str.split, said.out.splitlines())
    found = {words[0]: words[1] for words in lines if len(words) > 1 and (
        words[0].endswith(('_pairs', '_bag')) or words[0] == 'sizes')}
    return ended, found, said.err

  def not_ran(found):
    return {name: state for name, state in found.items() if state != 'ran'}

  ended, found, error = start('model_sde_samtone_bag_pairs', -9)
  assert ended == 137  # As a shell has it.
  assert '1 of 11 stages failed: model_sde_samtone_bag_pairs. Run' in error
  assert not_ran(found) == {
      'model_sde_samtone_bag_pairs': 'failed',
      'results_sde_samtone_bag_pairs': 'left', 'losses_sde_bag': 'left',
  }
  table = (work / 'sizes/comparison.md').read_text().replace('\\_', '_')
  assert 'No results: sde samtone bag (' in table
  # A signal ends all of it.
  ended, found, _ = start('results_sde_samtone_bag_pairs', 75)
  assert ended == 75
  assert found.pop('model_sde_samtone_bag_pairs') == 'ran'
  assert {*found.values()} == {'as'} and 'sizes' not in found
  ended, found, _ = start()
  assert ended == 0 and len(found) == 11
  assert [n for n, state in found.items() if state == 'ran'] == [
      'results_sde_samtone_bag_pairs', 'losses_sde_bag', 'sizes'
  ]
  assert {*start()[1].values()} == {'as'}
  # Each system has the numbers of its own cell.
  rows = read(work / 'sizes', 'comparison')['differences']
  cells = {
      f'{a} {loss} bag': read(work / f'results_{a}_{loss}_bag_pairs')
      for a in ('ade_spl', 'sde') for loss in ('softmax', 'samtone')
  }
  assert len({str(cell['metrics']) for cell in cells.values()}) > 2
  for row in rows:
    value = cells[row['model']]['metrics'][row['metric']]
    assert row['value'] == pytest.approx(value)
  chart = (work / 'sizes/mrr_over_parameters_pairs_test.csv').read_text()
  lines = [line.split(',') for line in chart.splitlines()]
  assert {(line, model) for line, model, *_ in lines[1:]} == {
      (name.removesuffix(' bag'), name) for name in cells
  }
  assert {float(row[2]) for row in lines[1:] if row[0][:3] == 'sde'} == {
      9307264
  }


@pytest.mark.nightly
@pytest.mark.usefixtures('in_process')
def test_daft(tmp_path, capfd):
  """Light query towers of a model; of a few steps, they are not aligned."""
  teacher, work = tmp_path / 'model', tmp_path / 'work'
  flags = tiny_run.flags(
      tmp_path, '--gin.STEPS=20', '--gin.models.T5Encoder.num_layers=2',
      '--gin.TEMPERATURE=0.1',
  )
  train.main([*flags, f'--model_dir={teacher}'])
  run(
      capfd, 'daft_ablations', work, f'--replace=teacher={teacher}',
      '--sweep=QUERY_LAYERS=1', "--gin.ABLATED={'QUERY_LAYERS': ['1']}",
      '--gin.MATCHING_STEPS=4',
      '--gin.ALIGNMENT_STEPS=12', '--gin.EVAL_EVERY=2',
      '--gin.FINETUNE_STEPS=4', '--gin.LEARNING_RATE=1e-2',
      # Its patience ends it, if not the divergence.
      '--gin.SHARE=0.9',
  )
  found = read(work / 'latency', 'latency')
  layers = {m['model']: m['layers'] for m in found['measured']}
  assert layers == {'teacher': 2, 'matched 1': 1, 'DAFT 1': 1}
  chart = (work / 'comparison/mrr_over_milliseconds_pairs_test.csv').read_text()
  lines = [line.split(',')[:2] for line in chart.splitlines()[1:]]
  assert sorted(lines) == [
      ['DAFT', 'DAFT 1'], ['matched', 'matched 1'], ['teacher', 'teacher']
  ]
  found = read(work / 'ablations_1', 'comparison')
  assert [model['name'] for model in found['models']] == [
      'w/o alignment', 'w/o shared projection', 'w/o pre-training',
      'w/o self-attention',
  ]


@pytest.mark.nightly
@pytest.mark.usefixtures('in_process')
def test_embeddinggemma(tmp_path, capfd):
  """A tiny T5 in place of the whole, of two seeds."""
  work = tmp_path / 'work'
  (tmp_path / 'small.gin').write_text(
      "include 'models/tiny.gin'\nmodels.Projection.hidden = (64,)\n"
      "models.T5Encoder.num_layers = 1\nDTYPE = 'float32'\n"
      'QUERY_LENGTH = 24\nPASSAGE_LENGTH = 24\nEVAL_EVERY = 0\n'
  )
  run(
      capfd, 'embeddinggemma', work, *tiny_run.pairs_flags(tmp_path)[1:],
      f'--gin.MODEL={[str(tmp_path / "small.gin")]}', '--gin.BATCH_SIZE=16',
      '--gin.PAIRS_STEPS=4', '--gin.FINETUNE_STEPS=3', '--gin.DEPTH=20',
      '--gin.NUM_NEGATIVES=2', '--gin.MATRYOSHKA_DIMS=(128, 32)',
      "--gin.SEEDS=['0', '1']",
      "--gin.MERGED='{finetuned_0.model},{finetuned_1.model}'",
  )
  last = tiny_run.logged(work / 'finetuned_1', 'train')[-1]
  assert {'32/loss', '128/loss', 'SpreadOut/loss'} <= last.keys()
  parts = [formats.read(work / f'finetuned_{i}') for i in (0, 1)]
  mean = formats.read(work / 'average')
  assert mean.usage.query_prefix == 'task: search result | query: '
  assert mean.trained_dims == (128, 32)
  name = 'projection/hidden_0/kernel'
  kernels = [part.tensors[name].read() for part in parts]
  assert np.abs(kernels[0] - kernels[1]).max() > 1e-4
  np.testing.assert_allclose(
      mean.tensors[name].read(), (kernels[0] + kernels[1]) / 2, atol=1e-7
  )
  found = read(work / 'comparison', 'comparison')
  models = found['baseline'], *found['models']
  assert [model['name'] for model in models] == [
      'pairs', 'fine-tuned', 'average'
  ]


@pytest.mark.nightly
@pytest.mark.usefixtures('in_process')
def test_jpq(tmp_path, capfd):
  work = tmp_path / 'work'
  dense = tiny_evaluation.shared_model()
  run(
      capfd, 'jpq', work, f'--replace=dense={dense}', *JPQ, '--gin.EVAL_EVERY=4'
  )
  text = json.dumps(read(work / 'comparison', 'comparison'))
  assert all(name in text for name in ('untrained codes', 'JPQ', 'dense'))
  trained = read(work / 'jpq_results')
  # 16 parts of 4 bits.
  assert (trained['codec'], trained['bytes_per_passage']) == ('jpq:16x4', 8)
  # The untrained codes are those that training starts from: the pairs of both
  # splits are the same.
  before, after = tiny_run.logged(work / 'jpq', 'validation')
  untrained = read(work / 'dense_results' / 'codecs' / 'opq-16x4')
  for name in ('MRR', 'nDCG@10'):
    for measured, logged in ((untrained, before), (trained, after)):
      assert measured['metrics'][name] == pytest.approx(logged[name], rel=1e-6)


@pytest.mark.nightly
@pytest.mark.usefixtures('in_process')
def test_table_2_of_thakur(tmp_path, capfd):
  corpus, work = tmp_path / 'corpus', tmp_path / 'work'
  tiny_beir.make_large().write(corpus)
  run(
      capfd, 'gpl_small', work,
      f'--replace=source={tiny_evaluation.shared_model()}',
      f'--replace=generator={shared_runs.generator()}',
      f'--replace=teacher={shared_runs.cross_encoder()}',
      f'--gin.CORPUS={str(corpus)!r}',
      f'--gin.CORPUS_FILE={str(corpus / "corpus.jsonl")!r}',
      *JPQ, '--gin.QUERIES_PER_PASSAGE=3', '--gin.DEPTH=20',
      '--gin.NEGATIVES=4', '--gin.NUM_NEGATIVES=2', '--gin.LEAST_SPREAD=0.0',
      '--gin.ADAPT_STEPS=3', '--gin.ADAPT_BATCH_SIZE=16', '--gin.BPR_STEPS=4',
      '--gin.GENQ_BATCH_SIZE=16', '--gin.TAUGHT_DEPTH=5',
      '--gin.JPQ_ADAPT_STEPS=3',
  )
  found = read(work / 'comparison', 'comparison')
  models = found['baseline'], *found['models']
  assert [model['name'] for model in models] == (
      'dense opq:16x4 GenQ GenQ+opq:16x4 GPL GPL+opq:16x4 BPR BPR+GenQ'
      ' BPR+GPL JPQ JPQ+GenQ JPQ+GPL'
  ).split()
