"""A model adapted to a corpus without queries, by the recipe of GPL."""

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
      'source': tiny_evaluation.shared_model(),
      'teacher': shared_runs.cross_encoder(),
      'generator': shared_runs.generator(),
      'corpus': tmp_path / 'corpus',
  }


def adapt(given, out):
  return cli.main([
      'recipe', '--gin_file=recipes/gpl.gin', f'--output_dir={out}',
      *(f'--replace={stage}={given[stage]}'
        for stage in ('source', 'generator', 'teacher')),
      f'--gin.CORPUS={given["corpus"]}',
      f'--gin.CORPUS_FILE={given["corpus"] / "corpus.jsonl"}', *FEW,
  ])


@pytest.mark.nightly
@pytest.mark.usefixtures('in_process')
def test_gpl_learns_a_teachers_margins_and_does_nothing_twice(
    given, tmp_path, capfd
):
  out = tmp_path / 'gpl'
  assert adapt(given, out) == 0
  said = capfd.readouterr().out
  assert 'Margins of ' in said
  row = json.loads((out / 'labels' / 'pairs.jsonl').read_text().split('\n')[0])
  assert len(row['negatives']) == len(row['negative_scores']) == 4
  assert len(row['positive_scores']) == 1
  for name in ('comparison', 'source_comparison'):
    found = json.loads((out / name / 'comparison.json').read_text())
    assert 'adapted' in json.dumps(found)
  # Nothing is done twice.
  assert adapt(given, out) == 0
  said = ' '.join(capfd.readouterr().out.split())
  assert 'comparison as before' in said and ' ran ' not in said
