"""`dualenc report` of a model beside others: tests, curves, what is refused."""

import re

import pytest
import report_folder
from report_folder import render
import result_folders

from dualenc_jax.utils.errors import UserError


@pytest.fixture
def model(tmp_path):
  """A model_dir with curves and one result, of 10 queries."""
  return scored(tmp_path / 'my_model', [1.0] * 10)


def scored(folder, values, loss=2.0):
  report_folder.new(folder)
  report_folder.curves(
      folder, *(report_folder.train(i, loss=loss + i) for i in range(3))
  )
  result_folders.of_column(folder, 'MRR', values)
  return folder


def beside_it(folder, system, values):
  """Moves a result of these values beside the model's, as `evaluate` does."""
  made = result_folders.of_column(folder / 'made', 'MRR', values)
  made.rename(folder / 'evaluation' / 'pairs-test' / system)


def test_bm25_is_the_baseline_where_it_was_measured(model):
  beside_it(model, 'bm25', [0.5] * 10)
  page = render(model)
  assert 'MRR 100.0 % pairs test; BM25 50.0 %' in page.text('top')
  text = page.text('comparison')
  assert 'my_model against BM25 (%)' in text
  # Of 10 equal steps up, 2 of the 2^10 flips are as good.
  assert '50.00 100.00 +50.00 0.0020' in text
  assert render(model, f'--beside={model}:bm25').text('comparison') == text
  # What was evaluated with a prompt has a page of the same model.
  result_folders.of_column(model / 'prompt-x', 'MRR', [0.25] * 10)
  page = render(model / 'prompt-x', f'--beside={model}')
  assert 'my_model/prompt-x' in page.text('top')
  assert ': 4 at step 2' in page.text('curves')
  assert 'prompt-x against my_model (%)' in page.text('comparison')


def test_another_model_is_compared_and_its_curves_are_drawn_over(model):
  other = scored(model.parent / 'other', [0.4, 0.5] * 5, loss=5.0)
  beside_it(model, 'bm25', [0.5] * 10)
  page = render(model, f'--beside={other}')
  text = page.text('comparison')
  assert 'All against other (%)' in text
  assert 'other my_model BM25 pairs test MRR 45.00 100.00* 50.00' in text
  assert 'my_model against BM25 (%)' in text
  curves = page.text('curves')
  assert 'my_model: 4 at step 2, lowest 2 at 0, highest 4 at 2' in curves
  assert 'other: 7 at step 2, lowest 5 at 0, highest 7 at 2' in curves
  (drawing,) = re.findall(r'<svg.*?</svg>', page.html, re.DOTALL)
  # Both in one pair of axes: the first point of the higher; y points down.
  first, other = (
      float(re.search(
          rf'd="M \S+ (\S+)\s+L[^"]*L[^"]*"[^>]*var\(--s{i}\)', drawing
      )[1])
      for i in (0, 1)
  )
  assert other < first


def test_what_cannot_be_compared_is_refused(model):
  other = scored(model.parent / 'other', [0.5] * 9)
  before = render(model).html
  with pytest.raises(UserError, match='only one of them has 1, such as q9'):
    render(model, f'--beside={other}')
  assert (model / 'report.html').read_text() == before
  (model / 'evaluation').rename(model.parent / 'gone')
  with pytest.raises(UserError, match='my_model has no results to compare'):
    render(model, f'--beside={other}')
  with pytest.raises(UserError, match=f'--beside={model} has no results'):
    render(other, f'--beside={model}')


def test_codecs_have_a_table(model):
  (own,) = model.glob('evaluation/*')
  for codec, value, size in (('', 0.5, 0), ('pq:64', 0.25, 64)):
    made = result_folders.of_column(
        model / f'made{size}', 'MRR', [value] * 10, codec=codec,
        embedding_dtype='float32', bytes_per_passage=size, times_smaller=8.0,
    )
    place = own / 'codecs' / 'pq-64' if codec else own
    place.mkdir(parents=True, exist_ok=True)
    for file in made.iterdir():
      file.rename(place / file.name)
  results = render(model).text('results')
  assert 'Codecs on pairs test (%) Codec bytes times smaller MRR p' in results
  assert 'float32 512 1 50.0 - pq:64 64 8 25.0 0.0020' in results


def test_what_training_has_changed_is_told(model):
  folder = model / 'validation'
  folder.mkdir()
  for name, value in (('before', 0.25), ('after', 0.75)):
    lines = ['query_id\tMRR', *(f'q{i}\t{value}' for i in range(10))]
    (folder / f'{name}.tsv').write_text('\n'.join(lines) + '\n')
  results = render(model).text('results')
  assert '10 queries, before training and after: MRR 0.2500' in results
  assert ' -> 0.7500 (p 0.0020' in results
