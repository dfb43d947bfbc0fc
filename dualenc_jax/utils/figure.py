"""A figure: numbers in columns, and a function that draws them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import csv
import dataclasses
import io
import pathlib
import textwrap
from typing import Any

from dualenc_jax.utils import files as files_lib, untrusted

QUERY = '#2f6bd8'
PASSAGE = '#f28518'
# Colours of systems.
COLOURS = ('#2f6bd8', '#f28518', '#0f766e', '#b8327a', '#7c5a00', '#64748b')
_LETTERS = 10  # Letters of an inch.
# Nothing in either file says when or by what it was made.
_NO_METADATA = {
    'png': {'Software': None},
    'svg': {'Date': None, 'Creator': None},
}
_STYLE: dict[Any, Any] = {
    'font.size': 10,
    'axes.titlesize': 11,
    'axes.labelcolor': '#3d3d3d',
    'axes.edgecolor': '#9a9a9a',
    'axes.linewidth': 0.8,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.axisbelow': True,
    'grid.color': '#e8e8e8',
    'grid.linewidth': 0.7,
    'xtick.color': '#5b5b5b',
    'ytick.color': '#5b5b5b',
    'xtick.labelsize': 9,
    'ytick.labelsize': 9,
    'legend.frameon': False,
    'legend.fontsize': 10,
    # Paths of SVG have names made of this, not of the time.
    'svg.hashsalt': 'dualenc',
}


@dataclasses.dataclass(frozen=True)
class Figure:
  """A figure in words, in numbers and in a drawing.

  Attributes:
    name: of its files.
    title: what it shows.
    caption: of what it was made, and how to read it.
    columns: the numbers that are drawn, by name; all of one length.
    inches: width and height.
    draw: draws onto an empty matplotlib figure.
  """

  name: str
  title: str
  caption: str
  columns: Mapping[str, Sequence[Any]]
  inches: tuple[float, float]
  draw: Callable[[Any], None]


def save(figure: Figure, folder: pathlib.Path) -> dict[str, str]:
  """Writes NAME.png, NAME.svg and NAME.csv, the same bytes every time.

  Returns the name, title and caption, and the names of the files by kind.
  """
  files = {kind: f'{figure.name}.{kind}' for kind in (*_NO_METADATA, 'csv')}
  contents = render(figure.inches, figure.draw, _NO_METADATA)
  for kind, content in contents.items():
    files_lib.write(folder / files[kind], content)
  write_csv(folder / files['csv'], figure.columns)
  words = {'title': figure.title, 'caption': figure.caption}
  return {'name': figure.name, **words, **files}


def render(
    inches: tuple[float, float], draw: Callable[[Any], None],
    kinds: Iterable[str], style: dict[str, Any] = {},
) -> dict[str, bytes]:
  """A drawing as 'png' or 'svg', by kind; `style` are parameters of matplotlib.

  Raises:
    ImportError: matplotlib is not installed.
  """
  # Not through pyplot, which would look for a screen.
  import matplotlib
  from matplotlib.figure import Figure as Canvas

  contents = {}
  with matplotlib.rc_context():
    # Whatever a user's matplotlibrc says.
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(_STYLE | style)
    canvas = Canvas(figsize=inches, layout='constrained')
    draw(canvas)
    for kind in kinds:
      content = io.BytesIO()
      # The figure grows where a name is longer than its place.
      canvas.savefig(
          content, dpi=200, metadata=_NO_METADATA[kind], format=kind,
          bbox_inches='tight',
      )
      contents[kind] = content.getvalue()
  return contents


def write_csv(path: pathlib.Path, columns: Mapping[str, Sequence[Any]]) -> None:
  """Writes columns of one length; of floats six digits."""
  content = io.StringIO()
  writer = csv.writer(content, lineterminator='\n')
  writer.writerow(columns)
  for row in zip(*columns.values(), strict=True):
    writer.writerow([f'{v:.6g}' if isinstance(v, float) else v for v in row])
  files_lib.write(path, content.getvalue())


def fit_text(text: str, inches: float = 9.0) -> str:
  """A text for matplotlib to draw as it is, in lines of so many inches at most.

  A text between two dollars is not a formula.
  """
  width = max(int(_LETTERS * inches), 1)
  lines = textwrap.fill(untrusted.escape_controls(text), width)
  return lines.replace('$', r'\$')


def format_percent(axis: Any) -> None:
  """A y axis of shares, in percent, with faint lines."""
  axis.yaxis.set_major_formatter(lambda share, _: f'{100 * share:.3g}%')
  axis.locator_params(axis='y', nbins=5)
  axis.grid(axis='y')
  axis.spines['left'].set_visible(False)
  axis.tick_params(axis='y', length=0)
  axis.tick_params(axis='x', length=3)
