"""Writes a page on a trained model: numbers, curves, figures, examples.

  dualenc report my_model
  dualenc report my_model --beside=other_model --output=page.html

The page is one HTML file that needs no network and opens from disk. It shows
what is there: run `dualenc evaluate` and `dualenc analyze` first. The model is
compared with BM25 as evaluated beside it, or with the first --beside. What you
write of uses, licence and faults into MODEL_DIR/about.md is in it.
"""

from collections.abc import Sequence
import pathlib
import sys

from dualenc_jax.commands import flags
from dualenc_jax.inspection.mojibake import printable
from dualenc_jax.io import files
from dualenc_jax.report import beside, contents, page


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  output = args.output or pathlib.Path(args.model_dir) / 'report.html'
  found = contents.read(args.model_dir)
  others = beside.read(pathlib.Path(args.model_dir), args.beside)
  html, problems = page.render(found, others)
  for problem in (*problems, *others.notes):
    print(f'warning: {printable(problem)}', file=sys.stderr)
  # A text may have half a surrogate pair, which a page shows as '?'.
  content = html.encode('utf-8', 'replace')
  files.make_folder(output.parent)
  files.write(output, content)
  size = f'{len(content) / 1e6:.2f} MB'
  print(f'Written to {output}, {size}. Open it in a browser.')


def make_parser() -> flags.Parser:
  parser = flags.Parser('report', __doc__)
  parser.add_argument(
      'model_dir', metavar='MODEL_DIR', help='the folder that training wrote',
  )
  parser.add_argument(
      '--beside', type=pathlib.Path, action='append', default=[], metavar='DIR',
      help='another model_dir or result folder, repeatable: its results with'
      ' paired tests, its training curves in the same charts',
  )
  parser.add_argument(
      '--output', type=pathlib.Path, metavar='FILE',
      help='MODEL_DIR/report.html by default',
  )
  return parser
