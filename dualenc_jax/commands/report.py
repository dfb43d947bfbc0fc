"""Writes a page on a trained model: numbers, curves, figures, examples.

  dualenc report my_model
  dualenc report my_model --output=page.html

The page is one HTML file that needs no network and opens from disk. It shows
what is there: run `dualenc evaluate` and `dualenc analyze` first.
"""

from collections.abc import Sequence
import pathlib
import sys

from dualenc_jax.commands import flags
from dualenc_jax.io import files
from dualenc_jax.report import contents, page


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  output = args.output or pathlib.Path(args.model_dir) / 'report.html'
  html, problems = page.render(contents.read(args.model_dir))
  for problem in problems:
    print(f'warning: {problem}', file=sys.stderr)
  # A text may have half a surrogate pair, which a page shows as '?'.
  content = html.encode('utf-8', 'replace')
  files.make_folder(output.parent)
  files.write(output, content)
  print(f'Written to {output}, {len(content) / 1e6:.2f} MB.')


def make_parser() -> flags.Parser:
  parser = flags.Parser('report', __doc__)
  parser.add_argument(
      'model_dir', metavar='MODEL_DIR', help='the folder that training wrote',
  )
  parser.add_argument(
      '--output', type=pathlib.Path, metavar='FILE',
      help='MODEL_DIR/report.html by default',
  )
  return parser
