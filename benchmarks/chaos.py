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
import collections
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

from dualenc_jax.utils.errors import RUN_AGAIN

# Runs and a reader of checkpoints, as tests have them.
sys.path.append(str(pathlib.Path(__file__).parents[1] / 'tests/helpers'))

import interrupted  # noqa: E402
import tiny_run  # noqa: E402
import two_hosts  # noqa: E402

_EVERY = 10
# Within which all hosts end after one has.
_SECONDS = 90.0
# The files are written once.
_flags = functools.cache(tiny_run.flags)


class Runs:
  """The runs of a form: `counts` of what was done to them; what was `lost`."""

  def __init__(self, folder: pathlib.Path, form: str, steps: int, seed: int):
    self.counts = collections.Counter(
        dict.fromkeys(('kills', 'terms', 'saving', 'ends', 'resumed'), 0)
    )
    self.counts['slowest'] = 0.0
    self.lost: list[str] = []
    self._folder, self._steps = folder, steps
    self._run = folder / 'run'
    count, _, self._devices = form.rpartition('x')
    self._hosts = int(count or 1)
    self._rng = random.Random(f'{seed} {form}')
    folder.mkdir(parents=True)
    began = time.monotonic()
    self._finish(folder / 'whole')
    self._seconds = time.monotonic() - began
    self._whole = interrupted.saved(folder / 'whole', steps)

  def strike_all(self, blows: list[signal.Signals]) -> None:
    """Strikes runs, and lets the last one come to its end."""
    self._rng.shuffle(blows)
    while blows:
      blow, before = blows[-1], interrupted.newest(self._run)
      hosts = self._start(self._run)
      struck = self._strike(hosts, blow)
      wrong = self._outcome(hosts, blow, struck)
      if struck:
        blows.pop()
      now = interrupted.newest(self._run)
      self.counts['resumed'] += struck and before > 0
      if now < before:
        wrong.append(f'step {before} is gone, {now} is the newest')
      if now:
        interrupted.saved(self._run, now)
      self.lost += [f'{blow.name}: {line}' for line in wrong]
      if now == self._steps:
        self._compare()
    if self._run.exists():
      self._finish(self._run)
      self._compare()

  def _compare(self) -> None:
    """Compares a run at its end with the one left alone, and removes it."""
    found = interrupted.saved(self._run, self._steps)
    self.counts['ends'] += 1
    self.lost += [
        f'{name} differs at the end'
        for name in self._whole.keys() | found.keys()
        if name not in self._whole
        or name not in found
        or self._whole[name].tobytes() != found[name].tobytes()
    ]
    shutil.rmtree(self._run)

  def _start(self, model_dir: pathlib.Path) -> list[subprocess.Popen]:
    """Starts the run on all of its hosts; what they log goes to a file each."""
    several = self._hosts > 1
    argv = [
        sys.executable, '-m', 'dualenc_jax', 'train',
        *_flags(self._folder), f'--gin.STEPS={self._steps}',
        f'--gin.CHECKPOINT_EVERY={_EVERY}', f'--model_dir={model_dir}',
        *['--multihost'] * several,
    ]
    joined = two_hosts.by_flags() if several else [[]]
    hosts = []
    for place, own in enumerate(joined):
      with open(self._folder / f'host-{place}.log', 'ab') as log:
        hosts.append(
            subprocess.Popen(
                [*argv, *own],
                env=os.environ | {'JAX_NUM_CPU_DEVICES': str(self._devices)},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        )
    return hosts

  def _finish(self, model_dir: pathlib.Path) -> None:
    """Trains to the end."""
    for host in self._start(model_dir):
      if host.wait():
        sys.exit(f'The run fails by itself; see {self._folder}')

  def _strike(
      self, hosts: list[subprocess.Popen], blow: signal.Signals
  ) -> bool:
    """Strikes one host; False where the run has ended before."""
    rng, before = self._rng, interrupted.newest(self._run)
    aim = rng.choice(('anywhere', 'training', 'saving'))
    wait = rng.uniform(0.0, self._seconds)
    if aim == 'training':
      _until(hosts, lambda: interrupted.newest(self._run) > before)
      wait = rng.uniform(0.0, 0.5)
    if aim == 'saving':
      for _ in range(rng.randrange(1, 6)):
        _until(hosts, lambda: interrupted.newest(self._run) > before)
        before = interrupted.newest(self._run)
      _until(hosts, self._is_saving)
      wait = rng.uniform(0.0, 0.05)
    deadline = time.monotonic() + wait
    _until(hosts, lambda: time.monotonic() > deadline)
    victim = rng.choice(hosts)
    if victim.poll() is not None:
      return False
    self.counts['saving'] += self._is_saving()
    self.counts['kills' if blow == signal.SIGKILL else 'terms'] += 1
    victim.send_signal(blow)
    return True

  def _is_saving(self) -> bool:
    return any((self._run / 'checkpoints').glob('*tmp*'))

  def _outcome(
      self, hosts: list[subprocess.Popen], blow: signal.Signals, struck: bool
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
    seconds = round(time.monotonic() - began, 1)
    self.counts['slowest'] = max(self.counts['slowest'], seconds)
    ends = [host.returncode for host in hosts]
    # A run that was struck before it could train, or had just ended.
    early = {0, -blow, 128 + blow}
    fits = blow != signal.SIGTERM or {*ends} <= {RUN_AGAIN, *early}
    if not (fits if struck else not any(ends)):
      wrong.append(f'it ended with {ends}')
    return wrong


def _until(hosts: list[subprocess.Popen], there) -> None:
  """Waits until something is there, or a host has ended."""
  while not there() and all(host.poll() is None for host in hosts):
    time.sleep(0.002)


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
    runs = Runs(args.folder / form, form, args.steps, args.seed)
    runs.strike_all(own)
    bad += len(runs.lost)
    print(json.dumps({'form': form, **runs.counts, 'lost': runs.lost}))
  sys.exit(bool(bad))


if __name__ == '__main__':
  main()
