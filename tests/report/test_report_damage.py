"""`dualenc report` on a model_dir of which something is damaged or hostile."""

import html
import re

import pytest
import report_folder
from report_folder import render

from dualenc_jax.utils.errors import UserError


@pytest.fixture
def folder(tmp_path):
  return report_folder.write(tmp_path / 'my_model')


def test_a_picture_that_is_gone_is_left_out_and_nothing_outside_is_read(folder):
  (folder / 'secret.png').write_bytes(report_folder.PNG)
  for name in '../../secret.png', 'x' * 5000, 'a\0', '\ud800':
    figure = {'title': 'A map', 'caption': '', 'png': name}
    report_folder.analysis(folder, figures=[figure])
    page = render(folder)
    assert page.attributes('src') == []
    assert 'separability' in page.text('space')


@pytest.mark.parametrize('name', [
    'config.gin', 'metrics.jsonl', 'evaluation/pairs-test/examples.jsonl',
    'analysis/pairs-test/analysis.json', 'checkpoints/40/meta/metadata',
    'about.md',
])
def test_a_file_that_is_damaged_is_named(folder, name):
  (folder / name).write_bytes(b'\xff\xfe\n')
  with pytest.raises(UserError, match=name):
    render(folder)
  assert not (folder / 'report.html').exists()


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
  figure = {'title': text, 'caption': text, 'png': 'tsne.png'}
  report_folder.analysis(folder, figures=[figure], numbers={text: 1.0})
  report_folder.curves(folder, report_folder.train(41, **{text: 1.0}))
  report_folder.new(folder, f'LOSS = {text}\n')
  (folder / 'about.md').write_text(text)
  page = render(folder)
  assert 'script' not in {tag for tag, _ in page.tags}
  assert not {*'\0\x1b\x9b\u202e\u2066'} & {*page.html}
  assert html.unescape(page.html).count(shown) >= 12
  for section in ('top', 'curves', 'space', 'examples', 'card', 'config'):
    assert ' '.join(shown.split()) in page.text(section), section


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
