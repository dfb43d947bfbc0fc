"""Writes a page on a trained model: numbers, curves, figures, examples.

  dualenc report my_model
  dualenc report my_model --output=page.html

The page is one HTML file that needs no network and opens from disk. It shows
what is there: run `dualenc evaluate` and `dualenc analyze` first.
"""

import argparse
from collections.abc import Sequence
import pathlib
import sys

from dualenc_jax.io import files
from dualenc_jax.report import contents, page


def main(argv: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
      prog='dualenc report',
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  parser.add_argument(
      'model_dir', metavar='MODEL_DIR', help='the folder that training wrote'
  )
  parser.add_argument(
      '--output', metavar='FILE', help='MODEL_DIR/report.html by default'
  )
  args = parser.parse_args(argv)
  default = pathlib.Path(args.model_dir) / 'report.html'
  output = pathlib.Path(args.output) if args.output else default
  html, problems = page.render(contents.read(args.model_dir))
  for problem in problems:
    print(f'warning: {problem}', file=sys.stderr)
  # A text may have half a surrogate pair, which a page shows as '?'.
  content = html.encode('utf-8', 'replace')
  files.make_folder(output.parent)
  files.write(output, content)
  print(f'Written to {output}, {len(content) / 1e6:.2f} MB.')
