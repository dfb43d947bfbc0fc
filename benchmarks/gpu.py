"""Everything that a GPU has to show, in one command of eight minutes.

  python benchmarks/gpu.py --out=FOLDER

Parts run one after another, the most valuable first, each as a process that is
ended, with all it started, at a limit of its own. A part that fails, or has too
little of --seconds left, does not end the others. After each, `gpu.jsonl` gets
a line; `gpu.log` has what all of them print; `summary.md` their tables. Nothing
but JAX, flax, optax and orbax is needed; peers that are installed are measured.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

import harness

HERE = pathlib.Path(__file__).parent
VOCABULARY = 'dualenc_jax/data/text/vocabularies/python_code_8k.model'
# Left for the summary.
_RESERVE = 3


@dataclasses.dataclass(frozen=True)
class Part:
  """A part: a command of this folder, its limit, and its environment.

  Attributes:
    command: a script and its flags.
    limit: seconds, at most.
    needs: seconds without which it is not begun.
    environment: variables that it gets; None unsets one.
  """

  command: list[str]
  limit: float
  needs: float
  environment: dict[str, str | None] = dataclasses.field(default_factory=dict)


def main() -> int:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--out', required=True, metavar='FOLDER', help='gets the figures')
  add('--only', help='parts by name, separated by commas, in this order')
  add('--toy', action='store_true', help='sizes for a CPU, to try this script')
  add('--seconds', type=float, default=480, help='of all parts together')
  args = parser.parse_args()
  end = time.monotonic() + args.seconds
  work = pathlib.Path(tempfile.gettempdir()) / 'dualenc_gpu'
  parts = _parts(args.toy)
  names = args.only.split(',') if args.only else list(parts)
  if unknown := set(names) - set(parts):
    parser.error(f'no parts {sorted(unknown)}; there are {", ".join(parts)}')
  out = pathlib.Path(args.out)
  out.mkdir(parents=True, exist_ok=True)
  (work / 'cache').mkdir(parents=True, exist_ok=True)
  tables, states = [], []
  for name in names:
    found = _run(name, parts[name], end - _RESERVE, out, work)
    tables.append(f'## {name}\n\n{found.pop("tables")}\n')
    states.append(f'{name} | {found["state"]} | {found["seconds"]:.0f}')
    with open(out / 'gpu.jsonl', 'a') as f:
      f.write(json.dumps({'part': name, **found}) + '\n')
    print(states[-1], flush=True)
  states = harness.table('part | state | s', states)
  text = '\n'.join([*tables, states, ''])
  (out / 'summary.md').write_text(text)
  print(text)
  return 0


def _parts(toy: bool) -> dict[str, Part]:
  """The parts by name, the most valuable first."""
  peer = []
  if python := harness.peer_python(None):
    peer = [f'--peer_python={python}']
  own = ['gpu_parts.py']
  train = [
      'train_step.py', '--dtype=bfloat16', '--layout=packed',
      '--query_length=64', '--passage_length=256', '--mean_query=16',
      '--mean_passage=150', '--warmup=2', '--rounds=1', '--plain_malloc',
      *(['--model=tiny', '--steps=2'] if toy else ['--model=base']),
  ]
  small, large = (8, 16) if toy else (256, 512)
  search = ['search_parts.py', '--seconds=100']
  if toy:
    search += ['--passages=5000', '--queries=20', '--dim=64']
    search += ['--hits', '10', '100']
  encode = [
      'encode.py', f'--passages={60 if toy else 20_000}', '--rounds=2',
      f'--vocabulary={HERE.parent / VOCABULARY}', '--dtype=bfloat16',
      f'--model={"tiny" if toy else "base"}', '--plain_malloc',
      f'--peer_batch={32 if toy else 256}',
  ]
  loss = ['loss.py', '--rounds=2', '--sides', 'dense', 'ring', '--batches']
  loss += ['64', '128'] if toy else ['8192', '65536']
  draw = [*own, 'draw', f'--model={"tiny" if toy else "base"}']
  draw += ['--dtype=bfloat16']
  fresh = {'JAX_COMPILATION_CACHE_DIR': None}
  kernel = fresh | {'JAX_THREEFRY_GPU_KERNEL_LOWERING': '1'}
  dropout = '--dropout_rate=0.1'
  precision = [*own, 'precision']
  if toy:
    precision.append('--side_length=256')
  profile = [*own, 'profile', *train[1:]]
  profile = [f for f in profile if f not in ('--rounds=1', '--plain_malloc')]
  return {
      'imports': Part([*own, 'imports'], 60, 10),
      'train_small': Part([*train, f'--batch={small}', *peer], 150, 100),
      'search': Part(search, 170, 60),
      'train_large_dropout': Part(
          [*train, f'--batch={large}', dropout], 150, 110
      ),
      'encode': Part(encode, 110, 60),
      'loss': Part(loss, 80, 40),
      'precision': Part(precision, 50, 20),
      'profile': Part([*profile, f'--batch={small}'], 90, 35),
      'draw_two_layers': Part([*draw, '--layers=2'], 40, 15, fresh),
      'draw_two_layers_kernel': Part([*draw, '--layers=2'], 40, 15, kernel),
      'draw_kernel': Part(draw, 90, 30, kernel),
      'train_large': Part([*train, f'--batch={large}'], 150, 80),
      'train_small_dropout': Part(
          [*train, f'--batch={small}', dropout], 150, 110
      ),
  }


def _run(
    name: str, part: Part, end: float, out: pathlib.Path, work: pathlib.Path
) -> dict[str, Any]:
  """Runs a part until `end` at most: its state, figures and tables."""
  left = end - time.monotonic()
  if left < part.needs:
    why = f'left out: {max(left, 0):.0f} s left of {part.needs:.0f} needed'
    return {'state': why, 'seconds': 0.0, 'tables': ''}
  variables = os.environ | {
      'JAX_COMPILATION_CACHE_DIR': str(work / 'cache'),
      'XLA_CLIENT_MEM_FRACTION': '0.92',
      'PYTHONPATH': os.pathsep.join(
          [str(HERE.parent), os.environ.get('PYTHONPATH', '')]
      ),
  } | part.environment
  begin = time.monotonic()
  with open(out / 'gpu.log', 'a') as log:
    print(f'\n== {name}: {" ".join(part.command)}', file=log, flush=True)
    with tempfile.TemporaryFile('w+') as printed:
      process = subprocess.Popen(
          [sys.executable, str(HERE / part.command[0]), *part.command[1:]],
          stdin=subprocess.DEVNULL, stdout=printed, stderr=log,
          env={k: v for k, v in variables.items() if v is not None},
          start_new_session=True,
      )
      try:
        code = process.wait(min(part.limit, left))
        state = 'done' if code == 0 else f'failed ({code}), see gpu.log'
      except subprocess.TimeoutExpired:
        state = f'ended after {min(part.limit, left):.0f} s'
      _end_group(process)
      printed.seek(0)
      lines = printed.read().splitlines()
    log.write('\n'.join([*lines, '']))
  figures = None
  if state == 'done':
    try:
      figures = json.loads(lines.pop())
    except (IndexError, ValueError):
      state = 'left no figures, see gpu.log'
  tables = '\n'.join(line for line in lines if line.startswith('|'))
  tables = tables or f'`{json.dumps(figures)[:1500]}`'
  return {
      'state': state, 'seconds': time.monotonic() - begin,
      'command': part.command, 'figures': figures, 'tables': tables,
  }


def _end_group(process: subprocess.Popen) -> None:
  """Ends a process and all it started, which have a group of their own."""
  try:
    os.killpg(process.pid, signal.SIGKILL)
  except ProcessLookupError:
    pass
  process.wait()


if __name__ == '__main__':
  sys.exit(main())
