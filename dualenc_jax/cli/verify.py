"""Reads all checkpoints of a run, and names damaged files.

  dualenc verify --model_dir=MODEL_DIR
"""

from collections.abc import Sequence
import pathlib

from dualenc_jax.checkpoints import checkpoint_reader
from dualenc_jax.cli import flags
from dualenc_jax.utils.errors import missing, UserError


def main(argv: Sequence[str] | None = None) -> None:
  folder = make_parser().parse_args(argv).model_dir
  if not folder.exists():
    raise UserError(missing(folder))
  checked = list(checkpoint_reader.check_integrity(folder))
  for found in checked:
    state = 'as it was saved.'
    if found.problems:
      state = 'damaged:'
    elif not found.has_digests:
      state = 'all can be read; an older version made it, without digests.'
    print(f'Checkpoint {found.step}: {state}')
    for problem in found.problems:
      print(f'  {problem}')
  bad = [str(found.step) for found in checked if found.problems]
  if bad:
    raise UserError(
        f'{len(bad)} of {len(checked)} checkpoints in {folder} are damaged:'
        f" {', '.join(bad)}. Restore them from a copy; otherwise `dualenc"
        ' train` resumes from the newest undamaged one.'
    )


def make_parser() -> flags.Parser:
  parser = flags.Parser('verify', __doc__)
  parser.add_argument(
      '--model_dir', required=True, type=pathlib.Path,
      help='folder of the run',
  )
  return parser
