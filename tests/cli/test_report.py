"""`dualenc report`, from a hand-made model_dir to the page."""

import base64
import re
import sys

import pytest
import report_folder
from report_folder import render

from dualenc_jax.cli import report
from dualenc_jax.utils.errors import UserError


@pytest.fixture
def folder(tmp_path):
  return report_folder.write(tmp_path / 'my_model')


def test_a_page_of_a_whole_folder(folder, capsys):
  page = render(folder)
  assert str(folder / 'report.html') in capsys.readouterr().out
  top = page.text('top')
  for words in (
      'my_model my_pairs', 'loss losses.SamToNe batch size 128',
      'initial checkpoint path /a/long/path', 'P@1 12.3 %', 'MRR 25.0 %',
      'Checkpoint of step 40 of 40', 'loss 2 ',
  ):
    assert words in top
  results = page.text('results')
  assert 'pairs test my_model 12.3 25.0 50.0' in results
  assert 'pairs test, 1,234 queries over 56,789 passages' in results
  curve = 'loss: 2 at step 40, lowest 2 at 40, highest 3.95 at 1'
  assert curve in page.text('curves')
  for words in ('A map', 'Of 400 & more.', 'separability 0.8125'):
    assert words in page.text('space')
  environment = page.text('environment')
  assert '"git_revision": "cafe1234"' in environment
  assert '"source": "f00d"' in environment and 'BATCH' not in environment
  assert 'TEMPERATURE = 0.05' in page.text('config')
  assert 'a <b> & c.jsonl' in page.text('config')
  assert page.text('missing') == page.text('comparison') == ''


def test_examples_show_what_was_found_and_what_was_wanted(folder):
  judged = [
      {**report_folder.HIT, 'grade': grade, 'rank': i, 'id': f'd{i}'}
      for i, grade in enumerate((3, 0, -1, None), 1)
  ]
  report_folder.evaluation(folder, examples=[
      report_folder.example(7),
      report_folder.example(1, hits=judged),
      report_folder.example(None, query='lost one', relevant=None),
  ])
  text = render(folder).text('examples')
  right, wrong = re.split('Wrong', text)
  assert '1 of the sample' in right and '2 of the sample' in wrong
  assert 'query of rank 1 rank 1' in right
  grades = re.findall('[✓✕○] [a-z]+(?: [a-z]+)?(?:, grade 3)?', right)
  assert grades == [
      '✓ relevant, grade 3', '✕ not relevant', '✕ not relevant', '○ not judged'
  ]
  assert '0.875' in right and 'first.of.all' in right
  assert 'query of rank 7 rank 7' in wrong
  assert '7 ✓ relevant wanted.one The wanted text.' in wrong
  assert 'lost one not found' in wrong


def test_a_folder_of_a_config_alone_names_what_makes_the_rest(tmp_path):
  folder = report_folder.new(tmp_path / "it's new")
  page = render(folder)
  missing = page.text('missing')
  quoted = "'" + str(folder).replace("'", "'\"'\"'") + "'"
  for command in ('evaluate', 'analyze'):
    assert f'dualenc {command} --model_dir={quoted}' in missing
  assert 'dualenc train --gin_file=' in missing
  assert 'No checkpoint yet, of 40 steps' in page.text('top')
  assert 'readers.Pairs' in page.text('top')


def test_a_page_while_training_has_validation_and_what_is_outdated(tmp_path):
  folder = report_folder.new(tmp_path / 'model')
  report_folder.checkpoint(folder, 10)
  report_folder.checkpoint(folder, 30)
  (folder / 'checkpoints' / '40.orbax-checkpoint-tmp').mkdir()
  measured = {'group': 'validation', 'MRR': 0.25, 'P@1': 0.125}
  report_folder.curves(folder, {'step': 10, **measured})
  page = render(folder)
  top = page.text('top')
  assert 'Checkpoint of step 30 of 40' in top and 'P@1 12.5 %' in top
  assert '"step": 30' in page.text('environment')
  assert 'MRR 25.0 % validation, step 10' in top
  assert 'Training is at step 30 of 40.' in page.text('missing')
  assert '--split' not in page.text('missing')
  report_folder.new(folder, 'VALIDATION_FILE = None\nTEST_FILE = None\n')
  missing = render(folder).text('missing')
  for command in 'evaluate', 'analyze':
    said = f"dualenc {command} --model_dir='my model' --split=train"
    assert said.replace("'my model'", str(folder)) in missing
  report_folder.evaluation(folder, examples=None, checkpoint_step=10)
  page = render(folder)
  missing = page.text('missing')
  assert 'is of step 10, the newest checkpoint of step 30' in missing
  assert ', of step 10' in page.text('top')
  assert "dualenc evaluate --model_dir='my model' --split=test" in missing


def test_the_best_step_and_an_early_end_are_shown(tmp_path):
  folder = report_folder.new(tmp_path / 'model')
  best = {'step': 20, 'metric': 'nDCG@10', 'value': 0.25, 'since': 1}
  notes = {'best': best, 'ended': 'nDCG@10 has not risen.'}
  report_folder.checkpoint(folder, 20)
  report_folder.checkpoint(folder, 30, notes=notes, run_id='x')
  report_folder.curves(
      folder,
      report_folder.train(30, loss=1, chance=2, query_rank=7),
      {'step': 30, 'group': 'alignment', 'kl': 12, 'kl_limit': 3},
  )
  report_folder.evaluation(folder, checkpoint_step=30)
  report_folder.evaluation(
      folder, 'other', split='o', checkpoint_step=20, run_id='y'
  )
  page = render(folder)
  top, curves = page.text('top'), page.text('curves')
  assert 'is that of step 20, the best by nDCG@10 (0.2500)' in top
  assert 'ended early: nDCG@10 has not risen.' in top
  missing = page.text('missing')
  assert 'is of step 30, the best checkpoint of step 20' in missing
  assert 'other is of another training run than the best checkp' in missing
  assert 'Training is at step' not in missing
  assert 'Effective rank of the embeddings' in curves and 'alike: 2' in curves


def test_benchmarks_have_the_papers_tables_and_averages(folder):
  for name, score in (('scifact', 0.5), ('nfcorpus', 0.25)):
    report_folder.evaluation(
        folder, f'beir-{name}-test', [report_folder.example(1)],
        task='beir', dataset=name, label=f'beir-{name}',
        metrics={'nDCG@10': score, 'MRR': 0.75},
    )
  page = render(folder)
  results = page.text('results')
  assert 'NFCorpus 25.0 SciFact 50.0 Average of 2 37.5' in results
  assert 'nDCG@10 50.0 % beir-scifact test' in page.text('top')
  assert 'beir-nfcorpus-test: 1 queries' in page.text('examples')


def test_results_of_several_runs_are_noted(folder):
  report_folder.evaluation(folder, run_id='x')
  report_folder.evaluation(folder, 'pairs-a', split='a', run_id='y')
  page = render(folder)
  assert page.text('examples') == page.text('missing') == ''
  assert 'Figures are of 2 training runs.' in page.text('results')


def test_pictures_are_embedded(folder):
  content = base64.b64encode(report_folder.PNG).decode()
  (source,) = render(folder).attributes('src')
  assert source == f'data:image/png;base64,{content}'


def test_what_need_not_be_there(folder, monkeypatch):
  """Matplotlib is named where it is missing."""
  monkeypatch.setitem(sys.modules, 'matplotlib', None)
  page = render(folder)
  assert 'dualenc-jax[plots]' in page.text('curves')
  assert '<svg' not in page.html


def test_data_and_the_owners_words_are_in_the_card(folder):
  data = {'task': 'pairs', 'examples': 2560, 'global_batch': 128}
  report_folder.checkpoint(folder, 40, data=data)
  card = render(folder).text('card')
  assert 'Trained on pairs, 2,560 examples' in card
  assert 'pairs test: 1,234 queries over 56,789 passages' in card
  (folder / 'about.md').write_text('# Of law\n![x](http://y.z) *MIT* <b>\n')
  page = render(folder)
  for shown in ('<h1>Of law</h1>', '<em>MIT</em> &lt;b&gt;'):
    assert shown in page.html
  assert not any('y.z' in source for source in page.attributes('src'))


def test_what_is_refused_and_where_a_page_may_be(folder):
  (folder / 'folder').mkdir()
  for argv, message in (
      (['folder'], 'no config.gin'),
      (['none'], 'does not exist'),
      (
          ['', f'--output_file={folder}/folder'],
          'cannot be written: .*. Give ',
      ),
  ):
    place, *others = argv
    with pytest.raises(UserError, match=message):
      report.main([f'--model_dir={folder / place}', *others])
  assert not list(folder.glob('*.partial'))
  file = folder / 'new' / 'one' / 'p.html'
  report.main([f'--model_dir={folder}', f'--output_file={file}'])
  page = file.read_text('utf-8')
  assert page.startswith('<!DOCTYPE html>')
