"""Files of a figure: the same bytes every time, and numbers one can read."""

import csv
import io
import re

import matplotlib
import matplotlib.image
import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.figures import drawing, figure as figure_lib
from dualenc_jax.figures.figure import Figure


def a_figure(draw):
  return Figure(
      'one',
      'A title',
      'A caption.',
      {'name': ['a, "b"', 'c'], 'x': [1 / 3, 2e-9], 'n': [1, 20_000_000]},
      (5, 5),
      draw,
  )


def draw_panels(canvas):
  rng = np.random.default_rng(0)
  panels = [
      drawing.Panel(name, '', *rng.normal(size=(2, 30, 2))) for name in 'abcd'
  ]
  drawing.draw_maps(canvas, panels)


def draw_histograms(canvas):
  curves = [drawing.Curve(n, np.ones(4) / 4, 0.5) for n in 'abcdefgh']
  drawing.draw_histograms(
      canvas, np.linspace(0, 1, 5), curves, 'x', 'y', (0.4, 0.6)
  )


@pytest.mark.parametrize('draw', [draw_panels, draw_histograms])
def test_files_are_the_same_whatever_the_user_has_set(tmp_path, draw):
  entry = figure_lib.save(a_figure(draw), tmp_path)
  assert entry == {
      'name': 'one',
      'title': 'A title',
      'caption': 'A caption.',
      'png': 'one.png',
      'svg': 'one.svg',
      'csv': 'one.csv',
  }
  first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  assert sorted(first) == ['one.csv', 'one.png', 'one.svg']
  with matplotlib.rc_context({'font.size': 30, 'savefig.dpi': 20}):
    figure_lib.save(a_figure(draw), tmp_path)
    assert matplotlib.rcParams['font.size'] == 30
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == first
  assert b'<dc:date>' not in first['one.svg']
  assert b'Matplotlib' not in first['one.png']


def test_numbers_have_six_digits_and_text_is_quoted(tmp_path):
  figure_lib.save(a_figure(lambda canvas: None), tmp_path)
  with (tmp_path / 'one.csv').open(newline='') as file:
    rows = list(csv.reader(file))
  assert rows == [
      ['name', 'x', 'n'],
      ['a, "b"', '0.333333', '1'],
      ['c', '2e-09', '20000000'],
  ]


@pytest.mark.parametrize('kind', ['png', 'svg', 'csv'])
def test_a_file_that_cannot_be_written_is_named(tmp_path, kind):
  (tmp_path / f'one.{kind}').mkdir()
  with pytest.raises(UserError, match=f'one.{kind} cannot be written: '):
    figure_lib.save(a_figure(lambda canvas: None), tmp_path)
  # Nothing half-written is left of it.
  assert not list(tmp_path.glob('*.partial'))


def test_what_was_there_stays_if_drawing_fails(tmp_path):
  figure_lib.save(a_figure(lambda canvas: None), tmp_path)
  before = (tmp_path / 'one.csv').read_bytes()
  columns = {'a': iter([1, 2]), 'b': [1]}
  with pytest.raises(ValueError):
    figure_lib.write_csv(tmp_path / 'one.csv', columns)
  assert (tmp_path / 'one.csv').read_bytes() == before


def test_columns_of_two_lengths_are_an_error(tmp_path):
  with pytest.raises(ValueError):
    figure_lib.write_csv(tmp_path / 'x.csv', {'a': [1], 'b': [1, 2]})


def test_models_have_styles_of_their_own():
  styles = [tuple(drawing.model_style(i).values()) for i in range(20)]
  assert len(set(styles)) == 20


@pytest.mark.parametrize('count', [1, 2, 4, 5])
def test_there_are_as_many_panels_as_models(count):
  from matplotlib.figure import Figure as Canvas

  canvas, point = Canvas(), np.zeros((1, 2))
  panels = [drawing.Panel(f'{i}', '', point, point + 1) for i in range(count)]
  drawing.draw_maps(canvas, panels)
  titles = [axis.get_title('left').strip() for axis in canvas.axes]
  assert titles == [f'{i}' for i in range(count)]


def test_a_panel_is_square_and_holds_all_points():
  from matplotlib.figure import Figure as Canvas

  canvas = Canvas()
  points = np.array([[0.0, 0], [10, 1]]), np.array([[3.0, -1]])
  drawing.draw_maps(canvas, [drawing.Panel('a', '', *points)])
  (axis,) = canvas.axes
  (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
  assert right - left == pytest.approx(top - bottom)
  assert left < 0 and right > 10 and bottom < -1 and top > 1


LONG = 'a-model-name-that-is-longer-than-any-place-for-it-2026-final-version-2'


def draw_long_maps(canvas):
  rng = np.random.default_rng(0)
  panels = [
      drawing.Panel(LONG + n, '', *rng.normal(size=(2, 9, 2)), ('one', 'two'))
      for n in 'abc'
  ]
  drawing.draw_maps(canvas, panels)


def draw_long_legend(canvas):
  curves = [drawing.Curve(LONG * 2, np.ones(4) / 4, 0.5)]
  drawing.draw_histograms(canvas, np.linspace(0, 1, 5), curves, LONG, 'y')


def draw_long_names(canvas):
  axis = canvas.subplots()
  axis.barh([0, 1], [1, 2])
  axis.set_yticks([0, 1], [LONG, 'b'])
  axis.set_title(LONG * 2)


@pytest.mark.parametrize(
    'draw', [draw_long_maps, draw_long_legend, draw_long_names]
)
def test_no_name_is_cut_at_the_edge(draw):
  content = figure_lib.drawn((9, 3), draw, ['png'])['png']
  pixels = matplotlib.image.imread(io.BytesIO(content))
  frame = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
  assert all((side == 1).all() for side in frame)


def test_names_of_maps_side_by_side_do_not_run_into_each_other():
  style = {'svg.fonttype': 'none'}
  content = figure_lib.drawn((9, 4), draw_long_maps, ['svg'], style)['svg']
  words = re.findall(r'>([^<>\n]+)</t(?:ext|span)>', content.decode())
  # A panel is 2.7 inches wide.
  assert max(map(len, words)) <= 27
  assert ''.join(words).count(LONG) == 3
