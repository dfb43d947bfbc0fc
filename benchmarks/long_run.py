"""Watches a long training run from outside: does anything grow?

  python benchmarks/long_run.py --folder=long

20,000 steps of the tiny model, with a checkpoint every 500 and an evaluation
every 1,000 of them. Prints resident memory, open files and threads of the
process as the run goes on, and ends with 1 if any is larger at the end than a
quarter of the way in: by more than a file, a thread, or --megabytes.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

# Runs as tests have them.
sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests/helpers'))

import interrupted  # noqa: E402
import tiny_run  # noqa: E402

_ROWS = 20


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  add = parser.add_argument
  add('--folder', type=pathlib.Path, required=True)
  add('--steps', type=int, default=20_000)
  add('--devices', type=int, default=1)
  add('--megabytes', type=float, default=30)
  args = parser.parse_args()
  args.folder.mkdir(parents=True)
  with open(args.folder / 'log', 'wb') as log:
    run = subprocess.Popen(
        [
            sys.executable, '-m', 'dualenc_jax', 'train',
            *tiny_run.flags(args.folder), f'--gin.STEPS={args.steps}',
            '--gin.CHECKPOINT_EVERY=500', '--gin.EVAL_EVERY=1000',
            f'--model_dir={args.folder / "model"}',
        ],
        env=os.environ | {'JAX_NUM_CPU_DEVICES': str(args.devices)},
        stdout=log,
        stderr=log,
    )
  print('| step | memory, MB | files | threads | seconds |')
  print('|---|---|---|---|---|')
  rows, began = [], time.monotonic()
  while run.poll() is None:
    step = interrupted.newest(args.folder / 'model')
    if step >= (len(rows) + 1) * args.steps // _ROWS:
      rows.append(measured(run.pid))
      cells = step, *rows[-1], time.monotonic() - began
      print('|', ' | '.join(f'{cell:,.0f}' for cell in cells), '|', flush=True)
    time.sleep(0.05)
  if run.returncode:
    sys.exit(f'the run has failed; see {args.folder / "log"}')
  first, last = rows[len(rows) // 4], rows[-1]
  allowed = args.megabytes, 1, 1
  sys.exit(any(b - a > most for a, b, most in zip(first, last, allowed)))


def measured(pid: int) -> tuple[float, int, int]:
  """Megabytes, open files and threads of a process."""
  process = pathlib.Path('/proc', str(pid))
  lines = (process / 'status').read_text().splitlines()
  found = dict(line.split(':', 1) for line in lines)
  return (
      int(found['VmRSS'].split()[0]) / 1000,
      len(list((process / 'fd').iterdir())),
      int(found['Threads']),
  )


if __name__ == '__main__':
  main()
