"""A model adapted to a corpus without queries, as a user does it."""

import json

import pytest
import shared_runs
import tiny_beir
import tiny_evaluation

from dualenc_jax.cli import main as cli

FEW = [
    '--gin.QUERIES_PER_PASSAGE=3', '--gin.ADAPT_STEPS=3',
    '--gin.ADAPT_BATCH_SIZE=16', '--gin.DEPTH=20', '--gin.NEGATIVES=4',
    '--gin.NUM_NEGATIVES=2', '--gin.LEAST_SPREAD=0.0',
]


@pytest.fixture
def given(tmp_path):
  """The models of an adaptation, and a corpus."""
  tiny_beir.make_large().write(tmp_path / 'corpus')
  return {
      'dense': tiny_evaluation.shared_model(),
      'teacher': shared_runs.cross_encoder(),
      'generator': shared_runs.generator(),
      'corpus': tmp_path / 'corpus',
  }


def adapt(given, out, *flags):
  return cli.main([
      'adapt', f'--model_dir={given["dense"]}', f'--corpus={given["corpus"]}',
      f'--generator={given["generator"]}', f'--teacher={given["teacher"]}',
      f'--output_dir={out}', *FEW, *flags,
  ])


@pytest.mark.slow
@pytest.mark.usefixtures('in_process')
def test_gpl_learns_a_teachers_margins_and_does_nothing_twice(
    given, tmp_path, capfd
):
  out = tmp_path / 'gpl'
  assert adapt(given, out, '--source_split=test') == 0
  said = capfd.readouterr().out
  assert 'Margins of ' in said
  assert f'The adapted model is {out}/adapted. Next: dualenc encode' in said
  assert 'word for word in the training' in said
  row = json.loads((out / 'labels' / 'pairs.jsonl').read_text().split('\n')[0])
  assert len(row['negatives']) == len(row['negative_scores']) == 4
  assert len(row['positive_scores']) == 1
  for name in ('comparison', 'source_comparison'):
    found = json.loads((out / name / 'comparison.json').read_text())
    assert 'adapted' in json.dumps(found)
  # Nothing is done twice.
  assert adapt(given, out, '--source_split=test') == 0
  said = ' '.join(capfd.readouterr().out.split())
  assert 'comparison as before' in said and ' ran ' not in said
  # Models of another kind are refused before any stage runs.
  for flag, model, kind in (
      ('teacher', 'generator', 'generator, not a cross-encoder'),
      ('generator', 'teacher', 'cross-encoder, not a generator'),
  ):
    assert adapt(given, tmp_path / 'no', f'--{flag}={given[model]}') == 2
    assert f'is a {kind}' in capfd.readouterr().err
  assert not (tmp_path / 'no').exists()


def write_empty(folder, *names):
  for name in names:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('')


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (['--corpus=model'], 'no model/corpus.jsonl'),
        (['--model_dir=.'], 'has no config.gin'),
        (['--output_dir=corpus/out'], 'inside the folder of the corpus'),
        (['--source_split=test', '--split=dev'], 'has no qrels of dev'),
        (['--generator=away'], '--generator is away, which does not exist'),
    ],
)
def test_what_is_missing_is_named(
    tmp_path, monkeypatch, capsys, flags, message
):
  monkeypatch.chdir(tmp_path)
  write_empty(tmp_path, 'model/config.gin', 'corpus/corpus.jsonl', 'x')
  given = ['--model_dir=model', '--corpus=corpus', '--generator=x', *flags]
  assert cli.main(['adapt', *given]) == 2
  assert message in capsys.readouterr().err
