"""Files of a figure: the same bytes every time, and numbers one can read."""

import csv
import io

import matplotlib
import matplotlib.image
import pytest

from dualenc_jax.utils import figure as figure_lib
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.figure import Figure

LONG = 'a-model-name-that-is-longer-than-any-place-for-it-2026-final-version-2'


def a_figure(draw=lambda canvas: None):
  columns = {'name': ['a, "b"', 'c'], 'x': [1 / 3, 2e-9], 'n': [1, 20_000_000]}
  return Figure('one', 'A title', 'A caption.', columns, (5, 5), draw)


def draw_lines(canvas):
  axis = canvas.subplots()
  axis.plot([0, 0.5, 1], label=figure_lib.fit_text(LONG))
  figure_lib.format_percent(axis)
  canvas.legend(loc='outside upper left')


def draw_long_names(canvas):
  axis = canvas.subplots()
  axis.barh([0, 1], [1, 2])
  axis.set_yticks([0, 1], [LONG, 'b'])
  axis.set_title(LONG * 2)


def test_files_are_the_same_whatever_the_user_has_set(tmp_path):
  files = {kind: f'one.{kind}' for kind in ('png', 'svg', 'csv')}
  words = {'name': 'one', 'title': 'A title', 'caption': 'A caption.'}
  assert figure_lib.save(a_figure(draw_lines), tmp_path) == words | files
  first = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  assert {*first} == {*files.values()}
  with matplotlib.rc_context({'font.size': 30, 'savefig.dpi': 20}):
    figure_lib.save(a_figure(draw_lines), tmp_path)
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


@pytest.mark.parametrize('draw', [draw_lines, draw_long_names])
def test_no_name_is_cut_at_the_edge(draw):
  content = figure_lib.render((9, 3), draw, ['png'])['png']
  pixels = matplotlib.image.imread(io.BytesIO(content))
  frame = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
  assert all((side == 1).all() for side in frame)


def test_a_text_is_drawn_as_it_is():
  assert figure_lib.fit_text('a $b$ c') == r'a \$b\$ c'
  assert figure_lib.fit_text(LONG, 2).count('\n') == 4
