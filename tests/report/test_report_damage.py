"""`dualenc report` on a model_dir of which something is damaged or hostile."""

import html
import json
import re

import pytest
import report_folder
from report_folder import render

from dualenc_jax.utils.errors import UserError


@pytest.fixture
def folder(tmp_path):
  return report_folder.write(tmp_path / 'my_model')


def test_a_picture_that_is_gone_is_reported_and_nothing_outside_is_read(
    folder, capsys
):
  (folder / 'secret.svg').write_bytes(report_folder.SVG)
  for name in '../../secret.svg', 'x' * 5000, 'a\0', '\ud800':
    figure = {'title': 'A map', 'caption': '', 'svg': name}
    report_folder.analysis(folder, figures=[figure])
    page = render(folder)
    assert page.attributes('src') == []
    assert "no picture of 'A map'" in capsys.readouterr().err
    assert "no picture of 'A map'" in page.text('top')
    assert 'separability' in page.text('space')


def test_a_file_that_cannot_be_read_is_named(folder):
  path = folder / 'config.gin'
  path.write_bytes(b'\xff\xfe')
  with pytest.raises(UserError, match=f'{path}.*not text in UTF-8'):
    render(folder)
  assert not (folder / 'report.html').exists()


EXAMPLES = 'evaluation/pairs-test/examples.jsonl'
ANALYSIS = 'analysis/pairs-test/analysis.json'
META = 'checkpoints/40/meta/metadata'
SAVED = 'checkpoints/40/_CHECKPOINT_METADATA'
RELEVANT = report_folder.example(9, relevant={'text': '', 'id': []})
LATE = f'{{"commit_timestamp_nsecs": {10**30}}}'


@pytest.mark.parametrize(
    'name, content, words, advice',
    [
        (EXAMPLES, json.dumps(RELEVANT), 'id is []', 'evaluate` again'),
        (ANALYSIS, '{}', "lacks 'figures'", '`dualenc analyze` again'),
        (META, '{"data": {"task": 1}}', 'task is 1', 'Restore the file'),
        (SAVED, LATE, '31 digits', 'Restore the file'),
        ('quickstart.json', '{"BM25": {"MRR": "high"}}', "is 'high'", ' again'),
        ('about.md', b'\xff\xfe', 'not text in UTF-8', 'Save it in UTF-8'),
        ('metrics.jsonl', '{"gro\n{}\n', '2 of 2 lines', 'They are left out'),
    ],
)
def test_what_is_damaged_is_reported_and_the_rest_is_shown(
    folder, capsys, name, content, words, advice
):
  if isinstance(content, str):
    content = content.encode()
  (folder / name).write_bytes(content)
  page = render(folder)
  warning = capsys.readouterr().err.splitlines()[0]
  assert warning.startswith(f'warning: {folder / name}') and words in warning
  assert warning.endswith(f'{advice}.')
  top = page.text('top')
  assert words in top and advice in top
  assert 'Some of this folder is damaged' in top
  assert 'pairs-test 12.3' in page.text('results')
  assert 'Checkpoint of step 40 of 40' in top
  for section, source in (('examples', EXAMPLES), ('space', ANALYSIS)):
    assert bool(page.text(section)) == (name != source)


def test_half_a_surrogate_pair_is_no_reason_for_no_page(folder):
  broken = report_folder.example(1, query='half \ud83d of one')
  report_folder.evaluation(folder, examples=[broken], split='a\udc80')
  assert 'half ? of one' in render(folder).text('examples')


@pytest.mark.parametrize('text, shown', [
    ('<script>alert("1")</script> & \'</details>', None),
    ('می\u200cخواهم 👩\u200d🔬 日本語\u3000一\u00a0二 שלום\u200f naïve', None),
    ('a\0\x1b[31m\x9b\u202egpj.exe\u2066z\tand\nmore',
     'a\\x00\\x1b[31m\\x9b\\u202egpj.exe\\u2066z\tand\nmore'),
])
def test_texts_of_data_show_as_text(folder, text, shown):
  shown = shown or text
  hit = {**report_folder.HIT, 'text': text, 'name': text, 'id': text}
  example = report_folder.example(
      1, query=text, relevant={'id': 'x', 'text': text}, hits=[hit]
  )
  report_folder.evaluation(
      folder, examples=[example], git_revision=text, label=text
  )
  figure = {'title': text, 'caption': text, 'svg': 'tsne.svg'}
  report_folder.analysis(folder, figures=[figure], numbers={text: 1.0})
  report_folder.curves(folder, report_folder.train(41, **{text: 1.0}))
  report_folder.new(folder, f'LOSS = {text}\n')
  (folder / 'about.md').write_text(text)
  page = render(folder)
  assert 'script' not in {tag for tag, _ in page.tags}
  assert not {*'\0\x1b\x9b\u202e\u2066'} & {*page.html}
  assert html.unescape(page.html).count(shown) >= 12
  for section in (
      'top', 'curves', 'space', 'examples', 'card', 'environment', 'config'
  ):
    assert ' '.join(shown.split()) in page.text(section), section


def test_a_terminal_does_not_obey_the_name_of_a_folder(folder, capsys):
  odd = folder / 'evaluation' / 'b\x1b[2J\u202e'
  (folder / 'evaluation' / 'pairs-test').rename(odd)
  (odd / 'examples.jsonl').write_text('{}')
  assert r'b\x1b[2J\u202e' in render(folder).text('results')
  error = capsys.readouterr().err
  assert r'b\x1b[2J\u202e' in error and '\x1b' not in error


def test_the_page_loads_and_runs_nothing(folder):
  page = render(folder)
  for link in page.attributes('src') + page.attributes('href'):
    assert link.startswith(('data:image/', '#')), link
  assert not {'script', 'link', 'iframe', 'object'} & {t for t, _ in page.tags}
  assert not any(name.startswith('on') for _, a in page.tags for name in a)
  (policy,) = (a['content'] for _, a in page.tags if a.get('http-equiv'))
  assert "default-src 'none'" in policy and 'script-src' not in policy
  for style in re.findall(r'<style.*?>(.*?)</style>', page.html, re.DOTALL):
    assert 'url(' not in style and '@import' not in style
  # Every link inside of the page has where to go.
  targets = {'#' + name for name in page.attributes('id')}
  assert {*page.attributes('href')} <= targets
