"""Writes a report of a trained model: numbers, curves, figures, examples.

  dualenc report --model_dir=my_model
  dualenc report --model_dir=my_model --beside=other_model

The report is one HTML file that opens without a network. It shows the results
that exist: run `dualenc evaluate` and `dualenc analyze` first. The model is
compared with the first --beside, else with BM25 as evaluated beside it. The
report includes MODEL_DIR/about.md, for your words on uses, licence and faults.
"""

from collections.abc import Sequence
import pathlib

from dualenc_jax.cli import flags
from dualenc_jax.evaluation.report import contents, page
from dualenc_jax.utils import files


def main(argv: Sequence[str] | None = None) -> None:
  args = make_parser().parse_args(argv)
  output = args.output_file or pathlib.Path(args.model_dir) / 'report.html'
  found = contents.read(args.model_dir, args.beside)
  # A text may have half a surrogate pair, which a page shows as '?'.
  content = page.render(found).encode('utf-8', 'replace')
  files.make_folder(output.parent)
  files.write(output, content)
  size = f'{len(content) / 1e6:.2f} MB'
  print(f'Written to {output}, {size}. Open it in a browser.')


def make_parser() -> flags.Parser:
  parser = flags.Parser('report', __doc__)
  add = parser.add_argument
  add('--model_dir', required=True,
      help='folder of a trained model, or of its dim-* or prompt-* in it')
  add('--beside', type=flags.path, action='append', default=[], metavar='DIR',
      help='another model_dir, result folder or MODEL_DIR:bm25 to compare with,'
      ' by paired tests and training curves; repeatable')
  add('--output_file', type=flags.path, metavar='FILE',
      help='file to write (default MODEL_DIR/report.html)')
  return parser
