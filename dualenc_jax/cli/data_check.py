"""Inspects a data set: counts, lengths, faults and how to mend them.

  dualenc data check train.jsonl dev.tsv --gin.QUERY_COLUMN=question
  dualenc data check msmarco --gin.DATA_ROOT=/data --gin.VOCABULARY=spiece.model

It reads every row once and writes report.md and report.json to
data_check, where they replace older ones. The exit status is 0, unless a split
cannot be used as it is: `dualenc train` would refuse one of its rows, or finds
none. With --strict it is 0 unless anything is wrong or suspicious.
"""

from collections.abc import Sequence
import dataclasses
import json
import logging
import pathlib

from dualenc_jax.cli import config, data_command, flags
from dualenc_jax.data.check import (
  find_faults,
  Finding,
  inspect_task,
  Inspection,
  Level,
  markdown,
)
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError

_REPORT = 'report.json'


def main(argv: Sequence[str] | None = None) -> None:
  args = config.parse_args(make_parser(), argv)
  logging.basicConfig(format='%(message)s')
  inputs = data_command.build(args)
  inspection = inspect_task(inputs.task, inputs.tokenizer, args.split)
  findings = find_faults(inspection)
  report = markdown(inspection, findings)
  print(report)
  _write(args.output_dir, report, inspection, findings)
  _check_verdict(findings, args.strict)


def make_parser() -> flags.Parser:
  parser = config.make_parser('data check', __doc__)
  add = parser.add_argument
  data_command.add_flags(parser)
  add('--split', action='append', default=[],
      help='split to read; repeatable (default all)')
  add('--output_dir', type=flags.path, default=pathlib.Path('data_check'),
      help='folder of the report, where an older one is replaced'
      ' (default %(default)s)')
  add('--strict', action='store_true',
      help='exit with status 2 if anything is wrong or suspicious')
  return parser


def _write(
    folder: pathlib.Path, report: str, inspection: Inspection,
    findings: Sequence[Finding],
) -> None:
  """Writes the report in both forms; prints where."""
  numbers = dataclasses.asdict(inspection)
  numbers['findings'] = [
      dataclasses.asdict(finding) | {'level': finding.level.value}
      for finding in findings
  ]
  files.make_folder(folder, 'another --output_dir')
  files.write(folder / 'report.md', report)
  text = json.dumps(numbers, indent=1, default=str, ensure_ascii=False)
  files.write(folder / _REPORT, text + '\n')
  print(f'Written to {folder}: report.md, {_REPORT}.')


def _check_verdict(findings: Sequence[Finding], strict: bool) -> None:
  unusable = [f.where for f in findings if f.level is Level.UNUSABLE]
  if unusable:
    raise UserError(
        f"Unusable: {', '.join(dict.fromkeys(unusable))}. The verdict above"
        ' says why.'
    )
  if strict and findings:
    raise UserError(
        f'{len(findings)} findings are wrong or suspicious, see the verdict.'
    )
