"""Files of a figure: the same bytes every time, and numbers one can read."""

import csv
import io
import re

import matplotlib
from matplotlib.figure import Figure as Canvas
import matplotlib.image
import numpy as np
import pytest

from dualenc_jax.errors import UserError
from dualenc_jax.figures import drawing, figure as figure_lib
from dualenc_jax.figures.figure import Figure

LONG = 'a-model-name-that-is-longer-than-any-place-for-it-2026-final-version-2'


def a_figure(draw=lambda canvas: None):
  columns = {'name': ['a, "b"', 'c'], 'x': [1 / 3, 2e-9], 'n': [1, 20_000_000]}
  return Figure('one', 'A title', 'A caption.', columns, (5, 5), draw)


def draw_maps(canvas, names='abcd', labels=('', '')):
  points = np.random.default_rng(0).normal(size=(2, 30, 2))
  panels = [drawing.Panel(name, '', *points, labels) for name in names]
  drawing.draw_maps(canvas, panels)


def draw_long_maps(canvas):
  draw_maps(canvas, [LONG + n for n in 'abc'], ('one', 'two'))


def draw_histograms(canvas, names='abcdefgh', x_label='x'):
  curves = [drawing.Curve(n, np.ones(4) / 4, 0.5) for n in names]
  edges = np.linspace(0, 1, 5)
  drawing.draw_histograms(canvas, edges, curves, x_label, 'y', (0.4, 0.6))


def draw_long_names(canvas):
  axis = canvas.subplots()
  axis.barh([0, 1], [1, 2])
  axis.set_yticks([0, 1], [LONG, 'b'])
  axis.set_title(LONG * 2)


@pytest.mark.parametrize('draw', [draw_maps, draw_histograms])
def test_files_are_the_same_whatever_the_user_has_set(tmp_path, draw):
  files = {kind: f'one.{kind}' for kind in ('png', 'svg', 'csv')}
  words = {'name': 'one', 'title': 'A title', 'caption': 'A caption.'}
  assert figure_lib.save(a_figure(draw), tmp_path) == words | files
  first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  assert {*first} == {*files.values()}
  with matplotlib.rc_context({'font.size': 30, 'savefig.dpi': 20}):
    figure_lib.save(a_figure(draw), tmp_path)
    assert matplotlib.rcParams['font.size'] == 30
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == first
  assert b'<dc:date>' not in first['one.svg']
  assert b'Matplotlib' not in first['one.png']
  with (tmp_path / 'one.csv').open(newline='') as file:
    assert list(csv.reader(file)) == [
        ['name', 'x', 'n'], ['a, "b"', '0.333333', '1'],
        ['c', '2e-09', '20000000'],
    ]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
  (tmp_path / 'one.svg').mkdir()
  with pytest.raises(UserError, match='one.svg cannot be written: '):
    figure_lib.save(a_figure(), tmp_path)
  # Nothing half-written is left of it.
  assert not list(tmp_path.glob('*.partial'))


def test_a_panel_is_square_and_holds_all_points():
  canvas = Canvas()
  points = np.array([[0.0, 0], [10, 1]]), np.array([[3.0, -1]])
  drawing.draw_maps(canvas, [drawing.Panel('a', '', *points)])
  (axis,) = canvas.axes
  (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
  assert right - left == pytest.approx(top - bottom)
  assert left < 0 and right > 10 and bottom < -1 and top > 1


@pytest.mark.parametrize(
    'draw',
    [
        draw_long_maps,
        lambda canvas: draw_histograms(canvas, [LONG * 2], LONG),
        draw_long_names,
    ],
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
