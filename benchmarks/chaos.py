"""Kills a training run over and over, and sees whether anything is lost.

  python benchmarks/chaos.py --folder=chaos --kills=100 --terms=30

A tiny run of 300 steps saves every 10 of them. It is started again and again;
each time SIGKILL or SIGTERM strikes at a moment drawn by chance: anywhere from
its start, between two steps, or within 50 ms after a save has begun. One that
comes after the end is struck again. Then

- the newest checkpoint must be no older than before, and must be readable;
- after SIGTERM the run must have ended by itself, with the exit status of a run
  that is to be started again, once it was training;
- of several hosts one is struck, and the others must end within a minute;
- a run that has come to its end must be bit for bit that of a run that was left
  alone on the same devices. It is then begun anew.

Forms: `1` and `8` devices of one host, and `2x4`, two hosts of 4 each.
"""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import numpy as np

from dualenc_jax.errors import RUN_AGAIN

# Runs and a reader of checkpoints, as tests have them.
sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests'))

import interrupted  # noqa: E402
import tiny_run  # noqa: E402

_EVERY = 10
# Within which all hosts end after one has.
_SECONDS = 60.0
# The files are written once.
_flags = functools.cache(tiny_run.flags)


@dataclasses.dataclass
class Tally:
  """What was done to the runs of a form, and what came of it."""

  kills: int = 0
  terms: int = 0
  saving: int = 0
  ends: int = 0
  resumed: int = 0
  lost: list[str] = dataclasses.field(default_factory=list)
  slowest: float = 0.0


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  add = parser.add_argument
  add('--folder', type=pathlib.Path, required=True)
  add('--forms', default='1,8,2x4')
  add('--kills', type=int, default=100, help='of all forms together')
  add('--terms', type=int, default=30, help='of all forms together')
  add('--steps', type=int, default=300, help='of a run')
  add('--seed', type=int, default=0)
  args = parser.parse_args()
  forms = args.forms.split(',')
  args.folder.mkdir(parents=True)
  blows = [signal.SIGKILL] * args.kills + [signal.SIGTERM] * args.terms
  bad = 0
  for place, form in enumerate(forms):
    own = blows[place :: len(forms)]
    tally = measure(args.folder / form, form, own, args.steps, args.seed)
    bad += len(tally.lost)
    print(json.dumps({'form': form} | dataclasses.asdict(tally)), flush=True)
  sys.exit(bool(bad))


def measure(
    folder: pathlib.Path,
    form: str,
    blows: list[signal.Signals],
    steps: int,
    seed: int,
) -> Tally:
  """Strikes the runs of a form, and lets the last one come to its end."""
  rng, tally = random.Random(f'{seed} {form}'), Tally()
  began = time.monotonic()
  finish(folder / 'whole', form, steps)
  seconds = time.monotonic() - began
  whole, run = interrupted.saved(folder / 'whole', steps), folder / 'run'
  rng.shuffle(blows)
  while blows:
    blow = blows[-1]
    before = interrupted.newest(run)
    hosts = start(run, form, steps)
    struck = strike(hosts, run, blow, rng, seconds, tally)
    told = outcome(hosts, blow, struck, tally)
    if struck:
      blows.pop()
    now = interrupted.newest(run)
    tally.resumed += struck and before > 0
    if now < before:
      told.append(f'step {before} is gone, {now} is the newest')
    if now:
      interrupted.saved(run, now)
    tally.lost += [f'{blow.name}: {line}' for line in told]
    if now == steps:
      compare(whole, run, steps, tally)
  if run.exists():
    finish(run, form, steps)
    compare(whole, run, steps, tally)
  return tally


def compare(
    whole: dict[str, np.ndarray], run: pathlib.Path, steps: int, tally: Tally
) -> None:
  """Compares a run at its end with the one left alone, and removes it."""
  found = interrupted.saved(run, steps)
  tally.ends += 1
  if found.keys() != whole.keys():
    tally.lost.append('the end has other tensors')
  tally.lost += [
      f'{name} differs at the end'
      for name in whole.keys() & found.keys()
      if whole[name].tobytes() != found[name].tobytes()
  ]
  shutil.rmtree(run)


def start(
    model_dir: pathlib.Path, form: str, steps: int
) -> list[subprocess.Popen]:
  """Starts the run on all of its hosts; what they say goes to a log each."""
  count, _, devices = form.rpartition('x')
  count = int(count or 1)
  with socket.socket() as s:
    s.bind(('localhost', 0))
    port = s.getsockname()[1]
  argv = [
      sys.executable, '-m', 'dualenc_jax', 'train',
      *_flags(model_dir.parent), f'--gin.STEPS={steps}',
      f'--gin.CHECKPOINT_EVERY={_EVERY}',
      f'--model_dir={model_dir}',
  ]
  together = {
      'JAX_COORDINATOR_ADDRESS': f'localhost:{port}',
      'JAX_NUM_PROCESSES': str(count),
  }
  hosts = []
  for host in range(count):
    more = together | {'JAX_PROCESS_ID': str(host)} if count > 1 else {}
    # The last one counts.
    flags = os.environ.get('XLA_FLAGS', '')
    flags += f' --xla_force_host_platform_device_count={devices}'
    with open(model_dir.parent / f'host-{host}.log', 'ab') as log:
      hosts.append(
          subprocess.Popen(
              [*argv, *(['--multihost'] if count > 1 else [])],
              env=os.environ | more | {'XLA_FLAGS': flags},
              stdout=subprocess.DEVNULL,
              stderr=log,
          )
      )
  return hosts


def finish(model_dir: pathlib.Path, form: str, steps: int) -> None:
  """Trains to the end."""
  model_dir.parent.mkdir(parents=True, exist_ok=True)
  for host in start(model_dir, form, steps):
    if host.wait():
      sys.exit(f'{form}: the run fails by itself; see {model_dir.parent}')


def strike(
    hosts: list[subprocess.Popen],
    run: pathlib.Path,
    blow: signal.Signals,
    rng: random.Random,
    seconds: float,
    tally: Tally,
) -> bool:
  """Strikes one host; False where the run has ended before."""
  before = interrupted.newest(run)
  aim = rng.choice(('anywhere', 'training', 'saving'))
  wait = rng.uniform(0.0, seconds)
  if aim == 'training':
    _until(hosts, lambda: interrupted.newest(run) > before)
    wait = rng.uniform(0.0, 0.5)
  if aim == 'saving':
    for _ in range(rng.randrange(1, 6)):
      _until(hosts, lambda: interrupted.newest(run) > before)
      before = interrupted.newest(run)
    _until(hosts, lambda: any((run / 'checkpoints').glob('*tmp*')))
    wait = rng.uniform(0.0, 0.05)
  deadline = time.monotonic() + wait
  _until(hosts, lambda: time.monotonic() > deadline)
  victim = rng.choice(hosts)
  if victim.poll() is not None:
    return False
  tally.saving += any((run / 'checkpoints').glob('*tmp*'))
  if blow == signal.SIGKILL:
    tally.kills += 1
  else:
    tally.terms += 1
  victim.send_signal(blow)
  return True


def _until(hosts: list[subprocess.Popen], there) -> None:
  """Waits until something is there, or a host has ended."""
  while not there() and all(host.poll() is None for host in hosts):
    time.sleep(0.002)


def outcome(
    hosts: list[subprocess.Popen],
    blow: signal.Signals,
    struck: bool,
    tally: Tally,
) -> list[str]:
  """What was wrong with how the hosts ended."""
  began, wrong = time.monotonic(), []
  for place, host in enumerate(hosts):
    try:
      host.wait(max(0.0, began + _SECONDS - time.monotonic()))
    except subprocess.TimeoutExpired:
      host.kill()
      host.wait()
      wrong.append(f'host {place} had not ended after {_SECONDS:.0f} s')
  tally.slowest = max(tally.slowest, round(time.monotonic() - began, 1))
  ends = [host.returncode for host in hosts]
  if not struck:
    return wrong + [f'it ended with {ends}'] * any(ends)
  # A run that was told of it before it could train, or had just ended.
  early = {0, -blow, 128 + blow}
  if blow == signal.SIGTERM and not {*ends} <= {RUN_AGAIN, *early}:
    wrong.append(f'it ended with {ends}')
  return wrong


if __name__ == '__main__':
  main()
