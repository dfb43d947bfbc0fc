"""`dualenc report` on a model_dir of which something is damaged."""

import json
import re

import pytest
import report_folder
from report_html import render

from dualenc_jax.errors import UserError


@pytest.fixture
def folder(tmp_path):
  return report_folder.write(tmp_path / 'my_model')


def test_a_picture_that_is_gone_is_told_and_nothing_outside_is_read(
    folder, capsys
):
  (folder / 'secret.svg').write_bytes(report_folder.SVG)
  figure = {'title': 'A map', 'caption': '', 'svg': '../../secret.svg'}
  report_folder.analysis(folder, figures=[figure])
  page = render(folder)
  assert page.attributes('src') == []
  assert "no picture of 'A map'" in capsys.readouterr().err
  assert "no picture of 'A map'" in page.text('top')
  assert 'separability' in page.text('space')


def test_damaged_curves_are_told_and_the_rest_is_shown(folder, capsys):
  path = folder / 'metrics.jsonl'
  lines = path.read_text().splitlines()
  lines[9], lines[19] = '{"step": 10, "gro', '{"step": true}'
  path.write_text('\n'.join(lines) + '\n')
  page = render(folder)
  error = capsys.readouterr().err
  assert error.startswith(f'warning: {path}')
  assert 'damaged in 2 of 40 lines, first in line 10' in page.text('top')
  assert 'loss: 2 at step 40' in page.text('curves')
  assert '12.3' in page.text('results')


@pytest.mark.parametrize(
    'name, content, words',
    [
        ('evaluation/pairs-test/metrics.json', '{"metrics"', 'no JSON'),
        ('evaluation/pairs-test/metrics.json', '{}', 'metrics'),
        ('config.gin', b'\xff\xfe', 'no text in UTF-8'),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folder, name, content, words):
  if isinstance(content, str):
    content = content.encode()
  (folder / name).write_bytes(content)
  with pytest.raises(UserError, match=re.escape(words)) as error:
    render(folder)
  assert str(folder / name) in str(error.value)
  assert not (folder / 'report.html').exists()


EXAMPLES = 'evaluation/pairs-test/examples.jsonl'
ANALYSIS = 'analysis/pairs-test/analysis.json'
META = 'checkpoints/40/meta/metadata'
SAVED = 'checkpoints/40/_CHECKPOINT_METADATA'
RELEVANT = report_folder.example(9, relevant={'text': '', 'id': []})
FAR = {**report_folder.HIT, 'score': 10**400}


@pytest.mark.parametrize(
    'name, content, words, section',
    [
        (EXAMPLES, '{}', "line 1 lacks 'query'", 'examples'),
        (EXAMPLES, '{"a":' * 100_000, 'is no JSON: maximum', 'examples'),
        (EXAMPLES, b'\xff', 'no text in UTF-8', 'examples'),
        (EXAMPLES, json.dumps(RELEVANT), 'id is []', 'examples'),
        (
            EXAMPLES,
            json.dumps(report_folder.example(1, hits=[FAR])),
            'score has 401 digits',
            'examples',
        ),
        (ANALYSIS, '[1]', 'is no JSON object', 'space'),
        (ANALYSIS, '{"figures": 3}', 'figures is 3', 'space'),
        (ANALYSIS, '{"figures": []}', "lacks 'numbers'", 'space'),
        (META, 'nonsense', 'no JSON', ''),
        (META, '{"data": "x"}', "data is 'x'", ''),
        (META, '{"data": {"task": 1}}', 'task is 1', ''),
        (SAVED, '{"commit_timestamp_nsecs": "x"}', "is 'x'", ''),
        (SAVED, f'{{"commit_timestamp_nsecs": {10**30}}}', '31 digits', ''),
        ('quickstart.json', '', 'no JSON', ''),
        ('quickstart.json', '{"BM25": {"MRR": "high"}}', "is 'high'", ''),
    ],
)
def test_what_is_damaged_is_told_and_the_rest_is_shown(
    folder, capsys, name, content, words, section
):
  if isinstance(content, str):
    content = content.encode()
  (folder / name).write_bytes(content)
  page = render(folder)
  error = capsys.readouterr().err
  assert error.startswith(f'warning: {folder / name}') and words in error
  assert words in page.text('top')
  assert 'Some of this folder is damaged' in page.text('top')
  assert 'pairs-test 12.3' in page.text('results')
  assert 'Checkpoint of step 40 of 40' in page.text('top')
  for other in ('examples', 'space'):
    assert bool(page.text(other)) == (other != section)


@pytest.mark.parametrize(
    'name, advice',
    [
        (EXAMPLES, 'Run `dualenc evaluate` again.'),
        (ANALYSIS, 'Run `dualenc analyze` again.'),
        ('quickstart.json', 'Run `dualenc quickstart` again.'),
        (SAVED, 'Restore the file.'),
    ],
)
def test_what_is_damaged_has_a_command_that_makes_it_anew(
    folder, capsys, name, advice
):
  for content in (b'\xff', b'[1]', b'{"a'):
    (folder / name).write_bytes(content)
    page = render(folder)
    assert capsys.readouterr().err.splitlines()[0].endswith(advice)
    assert advice in page.text('top')


def test_half_a_surrogate_pair_is_no_reason_for_no_page(folder):
  broken = report_folder.example(1, query='half \ud83d of one')
  report_folder.evaluation(folder, examples=[broken], split='a\udc80')
  page = render(folder)
  assert 'half ? of one' in page.text('examples')


def test_a_picture_with_a_name_that_no_file_has_is_told(folder, capsys):
  for name in ('x' * 5000, 'a\0b', 'a\ud800'):
    figure = {'title': 'A map', 'caption': '', 'svg': name}
    report_folder.analysis(folder, figures=[figure])
    assert render(folder).attributes('src') == []
    assert "no picture of 'A map'" in capsys.readouterr().err
