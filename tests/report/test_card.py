"""What the report says as a model card does, and texts that could harm it."""

import pytest
import report_folder
from report_html import render


@pytest.fixture
def folder(tmp_path):
  return report_folder.write(tmp_path / 'my_model')


def test_data_use_and_limits_are_told(folder):
  config = report_folder.CONFIG + 'QUERY_LENGTH = 32\nPASSAGE_LENGTH = 128\n'
  config += "TRAIN_FILE = 'of my own.jsonl'\n"
  config += 'readers.Pairs.train = %TRAIN_FILE\n'
  (folder / 'config.gin').write_text(config)
  data = {'task': 'pairs', 'examples': 2560, 'global_batch': 128}
  report_folder.checkpoint(folder, 40, data=data)
  report_folder.evaluation(folder, files={'test': 'held_out.jsonl'})
  page = render(folder)
  card = page.text('card')
  assert 'Finds the passages that answer a query' in card
  assert 'queries of 32 tokens at most, passages of 128 tokens at most' in card
  # 40 steps of 128 are 5,120 examples.
  assert 'of my own.jsonl, 2,560 examples, each seen 2 times' in card
  assert 'Started from /a/long/path' in card
  where = 'pairs (held_out.jsonl), test'
  assert f'{where}: 1,234 queries, 56,789 passages' in card
  assert f'MRR 25.0 % {where}' in page.text('top')
  assert 'about.md' in card and '#card' in page.attributes('href')


@pytest.mark.parametrize('objective, words', [
    ('Ranking', 'Orders the passages that a retriever has found'),
    ('Generation', 'Writes queries'),
])
def test_other_objectives_have_other_uses(folder, objective, words):
  config = f'{report_folder.CONFIG}OBJECTIVE = @objectives.{objective}()\n'
  (folder / 'config.gin').write_text(config)
  assert words in render(folder).text('card')


def test_what_its_owner_writes_is_shown_as_text(folder):
  (folder / 'about.md').write_text('Of law.\n\nLicence: <b>MIT</b> & more.\n')
  card = render(folder).text('card')
  assert 'Of law. Licence: <b>MIT</b> & more.' in card
  assert 'Nobody has written' not in card


def test_a_text_of_its_owner_that_is_not_utf_8_is_told(folder, capsys):
  (folder / 'about.md').write_bytes(b'\xff\xfe')
  page = render(folder)
  assert 'about.md' in page.text('top') and 'UTF-8' in page.text('top')
  assert 'warning: ' in capsys.readouterr().err


def test_controls_and_turned_texts_are_shown_as_escapes(folder, capsys):
  evil = 'a\0\x1b[31m\x9b\u202egpj.exe\u2066z\tand\nmore'
  hit = {**report_folder.HIT, 'text': evil, 'name': evil, 'id': evil}
  example = report_folder.example(1, query=evil, hits=[hit])
  report_folder.evaluation(
      folder, examples=[example], label=evil, git_revision=evil
  )
  report_folder.analysis(
      folder, figures=[{'title': evil, 'caption': evil, 'svg': 'tsne.svg'}]
  )
  config = report_folder.CONFIG + f"QUERY_PREFIX = '{evil}'\n"
  (folder / 'config.gin').write_text(config)
  odd = folder / 'evaluation' / 'b\x1b[2J\u202e'
  (folder / 'evaluation' / 'pairs-test').rename(odd)
  page = render(folder)
  html = (folder / 'report.html').read_text('utf-8')
  assert not {*'\0\x1b\x9b\u202e\u2066'} & {*html}
  shown = r'a\x00\x1b[31m\x9b\u202egpj.exe\u2066z and more'
  for section in ('top', 'space', 'examples', 'card', 'environment', 'config'):
    assert shown in page.text(section), section
  assert r'b\x1b[2J\u202e' in page.text('results')
  # Nor does a terminal obey the name of a folder.
  (odd / 'examples.jsonl').write_text('{}')
  capsys.readouterr()
  render(folder)
  error = capsys.readouterr().err
  assert r'b\x1b[2J\u202e' in error and '\x1b' not in error


def test_letters_of_all_scripts_stay_what_they_are(folder):
  text = 'می\u200cخواهم 👩\u200d🔬 日本語\u3000一\u00a0二 שלום\u200f naïve'
  example = report_folder.example(1, query=text)
  report_folder.evaluation(folder, examples=[example])
  render(folder)
  assert text in (folder / 'report.html').read_text('utf-8')
