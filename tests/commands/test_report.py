"""`dualenc report`, from a hand-made model_dir to the page."""

import base64
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import report_folder
from report_html import render

from dualenc_jax.commands import report
from dualenc_jax.errors import UserError


@pytest.fixture
def folder(tmp_path):
  return report_folder.write(tmp_path / 'my_model')


def test_a_page_of_a_whole_folder(folder, capsys):
  page = render(folder)
  assert str(folder / 'report.html') in capsys.readouterr().out
  top = page.text('top')
  assert 'my_model my_pairs' in top
  assert 'loss losses.SamToNe batch size 128' in top
  assert 'initial checkpoint path /a/long/path' in top
  assert 'Checkpoint of step 40 of 40, 2 January 2026, 03:04 UTC' in top
  assert 'P@1 12.3 %' in top and 'MRR 25.0 %' in top and 'loss 2 ' in top
  results = page.text('results')
  assert 'pairs-test 12.3 25.0 50.0 1,234 56,789' in results
  assert 'loss: 2 at step 40, lowest 2 at 40, highest 3.95 at 1' in page.text(
      'curves'
  )
  assert 'A map' in page.text('space')
  assert 'Of 400 & more.' in page.text('space')
  assert 'separability 0.8125' in page.text('space')
  environment = page.text('environment')
  assert 'git revision cafe1234' in environment
  assert 'data.source f00d' in environment and 'BATCH' not in environment
  assert 'TEMPERATURE = 0.05' in page.text('config')
  assert 'a <b> & c.jsonl' in page.text('config')
  assert page.text('missing') == ''


def test_the_page_loads_and_runs_nothing(folder):
  page = render(folder)
  for link in page.attributes('src') + page.attributes('href'):
    assert link.startswith(('data:image/', '#')), link
  assert not {'script', 'link', 'iframe', 'object'} & {t for t, _ in page.tags}
  assert not any(name.startswith('on') for _, a in page.tags for name in a)
  (policy,) = (
      a['content'] for _, a in page.tags if a.get('http-equiv')
  )
  assert "default-src 'none'" in policy and 'script-src' not in policy
  html = (folder / 'report.html').read_text('utf-8')
  for style in re.findall(r'<style.*?>(.*?)</style>', html, re.DOTALL):
    assert 'url(' not in style and '@import' not in style
  # Every link inside of the page has where to go.
  targets = {'#' + name for name in page.attributes('id')}
  assert set(page.attributes('href')) <= targets


def test_texts_of_data_show_as_text(folder):
  evil = '<script>alert("1")</script> & \'</details>'
  hit = {**report_folder.HIT, 'text': evil, 'name': evil, 'id': evil}
  examples = [
      report_folder.example(
          1, query=evil, relevant={'id': 'x', 'text': evil}, hits=[hit]
      )
  ]
  report_folder.evaluation(
      folder, examples=examples, git_revision=evil, label='a<b>'
  )
  report_folder.analysis(
      folder,
      figures=[{'title': evil, 'caption': evil, 'svg': 'tsne.svg'}],
      numbers={evil: 1.0},
  )
  report_folder.curves(folder, report_folder.train(41, **{'<b>x</b>': 1.0}))
  page = render(folder)
  assert not {'script', 'b>x'} & {tag for tag, _ in page.tags}
  shown = ' '.join(evil.split())
  assert page.text('examples').count(shown) >= 3
  assert page.text('space').count(shown) >= 2
  assert shown in page.text('environment')


def test_examples_say_what_was_found_and_what_was_wanted(folder):
  far = report_folder.example(7)
  lost = report_folder.example(None, query='lost one', relevant=None)
  judged = [
      {**report_folder.HIT, 'grade': grade, 'rank': i, 'id': f'd{i}'}
      for i, grade in enumerate((3, 0, -1, None), 1)
  ]
  right = report_folder.example(1, hits=judged)
  report_folder.evaluation(folder, examples=[far, right, lost])
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


def test_the_same_folder_gives_the_same_bytes(folder):
  pages = []
  for seed in ('1', '2'):
    output = folder.parent / f'page{seed}.html'
    root = pathlib.Path(report.__file__).parents[1]
    subprocess.run(
        [sys.executable, '-m', 'dualenc_jax', 'report', str(folder),
         f'--output={output}'],
        check=True,
        env={**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': str(root)},
        stdout=subprocess.DEVNULL,
    )
    pages.append(output.read_bytes())
  assert pages[0] == pages[1]
  assert not (folder / 'report.html').exists()


def test_a_folder_of_a_config_alone_says_what_makes_the_rest(tmp_path):
  folder = tmp_path / "it's new"
  folder.mkdir()
  (folder / 'config.gin').write_text(report_folder.CONFIG)
  page = render(folder)
  missing = page.text('missing')
  quoted = "'" + str(folder).replace("'", "'\"'\"'") + "'"
  for command in ('evaluate', 'analyze'):
    assert f'dualenc {command} --model_dir={quoted}' in missing
  assert 'dualenc train --gin_file=' in missing
  assert 'No checkpoint yet, of 40 steps' in page.text('top')
  assert 'readers.Pairs' in page.text('top')
  for section in ('results', 'curves', 'space', 'examples', 'environment'):
    assert page.text(section) == ''


def test_a_page_while_training_has_validation_and_what_is_outdated(tmp_path):
  folder = tmp_path / 'model'
  folder.mkdir()
  (folder / 'config.gin').write_text(report_folder.CONFIG)
  report_folder.checkpoint(folder, 10)
  report_folder.checkpoint(folder, 30)
  (folder / 'checkpoints' / '40.orbax-checkpoint-tmp').mkdir()
  measured = {'group': 'validation', 'MRR': 0.25, 'P@1': 0.125}
  report_folder.curves(folder, {'step': 10, **measured})
  page = render(folder)
  assert 'Checkpoint of step 30 of 40' in page.text('top')
  assert 'step 30' in page.text('environment')
  assert 'MRR 25.0 % validation, step 10' in page.text('top')
  assert 'P@1 12.5 %' in page.text('top')
  assert 'Training is at step 30 of 40.' in page.text('missing')
  report_folder.evaluation(folder, checkpoint_step=10)
  (folder / 'evaluation' / 'pairs-test' / 'examples.jsonl').unlink()
  missing = render(folder).text('missing')
  assert 'is of step 10, the newest checkpoint of step 30' in missing
  assert "dualenc evaluate --model_dir='my model' --split=test" in missing
  report_folder.evaluation(folder, checkpoint_step=30)
  (folder / 'evaluation' / 'pairs-test' / 'examples.jsonl').unlink()
  assert 'pairs-test has no examples' in render(folder).text('missing')


def test_the_best_step_and_an_early_end_are_told(tmp_path):
  folder = tmp_path / 'model'
  folder.mkdir()
  (folder / 'config.gin').write_text(report_folder.CONFIG)
  best = {'step': 20, 'metric': 'nDCG@10', 'value': 0.25, 'since': 1}
  notes = {'best': best, 'ended': 'nDCG@10 has not risen.'}
  report_folder.checkpoint(folder, 20)
  report_folder.checkpoint(folder, 30, notes=notes)
  report_folder.curves(
      folder,
      report_folder.train(30, loss=1, chance=2, query_rank=7, query_spread=0.5),
      {'step': 30, 'group': 'alignment', 'kl': 12, 'kl_limit': 3},
  )
  report_folder.evaluation(folder, checkpoint_step=30)
  page = render(folder)
  top, curves = page.text('top'), page.text('curves')
  assert 'is that of step 20, the best by nDCG@10 (0.2500)' in top
  assert 'ended early: nDCG@10 has not risen.' in top
  missing = page.text('missing')
  assert 'is of step 30, the best checkpoint of step 20' in missing
  assert 'Training is at step' not in missing
  for words in (
      'Effective rank of the embeddings', 'Spread of the embeddings',
      'Divergence of the towers', 'chance: 2',
  ):
    assert words in curves


def test_benchmarks_have_the_papers_tables_and_averages(folder):
  for name, score in (('scifact', 0.5), ('nfcorpus', 0.25)):
    report_folder.evaluation(
        folder,
        f'beir-{name}-test',
        [report_folder.example(1)],
        task='beir',
        dataset=name,
        label=f'beir-{name}',
        metrics={'nDCG@10': score, 'MRR': 0.75},
    )
  page = render(folder)
  results = page.text('results')
  assert 'NFCorpus 25.0 SciFact 50.0 Average of 2 37.5' in results
  assert 'beir-scifact-test - 75.0 50.0 -' in results
  assert 'nDCG@10 37.5 % mean of 2 BEIR sets' in page.text('top')
  assert 'beir-nfcorpus-test: 1 queries' in page.text('examples')


def test_a_table_that_is_wider_than_a_page_is_turned(folder):
  sets = {'SQuAD': 'validation', 'NaturalQuestions': 'validation'}
  sets |= {'TriviaQA': 'validation', 'SearchQA': 'validation'}
  sets |= {'HotpotQA': 'validation', 'BioASQ': 'test', 'DuoRC': 'test'}
  for i, (name, split) in enumerate(sets.items()):
    report_folder.evaluation(
        folder, f'{i}', task='multireqa', dataset=name, split=split,
        label=f'multireqa-{name}', metrics={'P@1': i / 10, 'MRR': 0.5},
    )
  results = render(folder).text('results')
  assert 'my_model NQ P@1 10.0 NQ MRR 50.0 SQuAD P@1 0.0' in results


@pytest.mark.parametrize(
    'fields, words',
    [
        (
            {
                'task': 'beir',
                'dataset': 'scifact',
                'label': 'beir-scifact',
                'metrics': {'nDCG@10': 0.5},
            },
            'Task my_model SciFact 50.0',
        ),
        (
            {
                'task': 'multireqa',
                'dataset': 'SQuAD',
                'label': 'multireqa-SQuAD',
                'split': 'validation',
                'metrics': {'P@1': 0.5, 'MRR': 0.75},
            },
            'Model SQuAD P@1 SQuAD MRR my_model 50.0 75.0',
        ),
        (
            {
                'task': 'open_nq',
                'label': 'open_nq',
                'metrics': {'Top-20': 0.5},
            },
            'Metric my_model Top-20 50.0',
        ),
    ],
)
def test_a_table_of_one_row_keeps_its_label(folder, fields, words):
  shutil.rmtree(folder / 'evaluation')
  report_folder.evaluation(folder, 'one', **fields)
  assert words in render(folder).text('results')


def test_an_evaluation_without_any_example_has_its_numbers(folder):
  report_folder.evaluation(folder, examples=[], query_prefix='')
  path = folder / 'evaluation' / 'pairs-test' / 'examples.jsonl'
  for nothing in ('', '\n'):
    path.write_text(nothing)
    page = render(folder)
    assert page.text('examples') == page.text('missing') == ''
  assert 'pairs-test 12.3' in page.text('results')
  assert 'query prefix (empty)' in page.text('environment')


def test_quickstart_baselines_stand_beside_the_model(folder):
  rows = {'BM25': {'MRR': 0.5, 'P@1': 0.25}, 'trained model': {'MRR': 0.625}}
  report_folder.write_json(folder / 'quickstart.json', rows)
  results = render(folder).text('results')
  assert 'P@1 MRR BM25 25.0 50.0 trained model - 62.5' in results


def test_pictures_are_embedded_small_svg_first(folder):
  where = folder / 'analysis' / 'pairs-test'

  def picture():
    (source,) = render(folder).attributes('src')
    kind, data = source.split(';base64,')
    return kind, base64.b64decode(data)

  assert picture() == ('data:image/svg+xml', report_folder.SVG)
  large = report_folder.SVG + b' ' * 200_000
  (where / 'tsne.svg').write_bytes(large)
  assert picture() == ('data:image/png', report_folder.PNG)
  (where / 'tsne.png').unlink()
  assert picture() == ('data:image/svg+xml', large)


def test_several_models_in_one_analysis_have_a_table(folder):
  models = [
      {'name': 'one', 'seed': 1, 'numbers': {'alignment': 0.5}},
      {'name': 'two', 'seed': 2, 'numbers': {'alignment': 1.5, 'more': 2.0}},
  ]
  report_folder.analysis(folder, models=models)
  page = render(folder)
  assert 'one two alignment 0.5 1.5 more - 2' in page.text('space')
  assert 'one.seed 1 two.seed 2' in page.text('environment')


def test_figures_of_several_runs_are_told(folder):
  report_folder.evaluation(folder, run_id='x')
  report_folder.evaluation(folder, 'pairs-a', split='a', run_id='y')
  assert 'Figures are of 2 training runs.' in render(folder).text('results')


def test_the_folder_of_the_page_is_made(folder, tmp_path):
  output = tmp_path / 'new' / 'one' / 'page.html'
  report.main([str(folder), f'--output={output}'])
  assert output.read_text('utf-8').startswith('<!DOCTYPE html>')


def test_a_folder_that_is_no_model_dir_is_refused(tmp_path):
  with pytest.raises(UserError, match='has no config.gin. Give the folder'):
    report.main([str(tmp_path)])


@pytest.mark.parametrize('output', ['taken/page.html', 'folder'])
def test_an_output_that_cannot_be_written_is_refused(folder, output):
  (folder / 'taken').write_text('a file')
  (folder / 'folder').mkdir()
  with pytest.raises(UserError, match='cannot be written: .*. Give '):
    report.main([str(folder), f'--output={folder / output}'])
  assert not list(folder.glob('*.partial'))
