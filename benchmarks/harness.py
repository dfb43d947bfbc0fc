"""The harness of all benchmarks: sides that take turns, clocks, memory, tables.

A side is a process of its own that takes orders, so that sides take turns
within a round, and each has its own memory and caches. Only what ran side by
side compares: machines drift and are shared. Every Python that a side runs in
imports this module, which needs the standard library alone.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

# glibc returns large buffers to the kernel after every step and faults them in
# again, page by page. PyTorch gains when told to keep them, XLA when the pages
# are huge; all sides are given both.
TUNED_MALLOC = {
    'MALLOC_MMAP_MAX_': '0',
    'MALLOC_TRIM_THRESHOLD_': str(2**34),
    'MALLOC_TOP_PAD_': str(2**28),
    'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1',
}
Figures = dict[str, Any]


class SideError(Exception):
  """An order failed; the message is the side's."""


class Side:
  """A process that runs `serve`; it lives until `close`."""

  def __init__(self, command: Sequence[str]):
    self._process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

  def ask(self, method: str, *args: Any) -> Any:
    """The result of the served object's method.

    Raises:
      SideError: the method raised, or the process is gone.
    """
    try:
      print(json.dumps([method, *args]), file=self._process.stdin, flush=True)
      answer = self._process.stdout.readline()
    except BrokenPipeError:
      answer = ''
    if not answer:
      raise SideError(f'the process ended ({self._process.wait()})')
    result, error = json.loads(answer)
    if error is not None:
      raise SideError(error)
    return result

  def close(self) -> None:
    """Ends the process, which may be gone already."""
    with contextlib.suppress(BrokenPipeError):
      self._process.stdin.close()
    self._process.wait()


def serve(served: Any) -> None:
  """Calls methods of `served` as ordered on stdin until that is closed.

  An order is a line of JSON, [method, *arguments]; its answer is a line with
  [result, error]. Whatever else is printed to stdout goes to stderr.
  """
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w')
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
  for line in sys.stdin:
    method, *args = json.loads(line)
    result, error = None, None
    try:
      result = getattr(served, method)(*args)
    except Exception as e:  # The other sides go on.
      error = one_line(e)
    print(json.dumps([result, error]), file=answers, flush=True)


def command(side: str, python: str | None = None) -> list[str]:
  """This script as a side, in this Python by default: its flags, and --side."""
  return [python or sys.executable, *sys.argv, f'--side={side}']


def tuned(command: Sequence[str]) -> list[str]:
  """The same command with tuned malloc."""
  return ['env', *(f'{k}={v}' for k, v in TUNED_MALLOC.items()), *command]


def beside(peer: str | None, malloc: bool, *sides: str) -> dict[str, list[str]]:
  """Commands of the peer's sides in its Python, and with tuned malloc."""
  if peer is None:
    return {}
  found = {side: command(side, peer) for side in sides}
  if malloc:
    found |= {f'{side}, tuned malloc': tuned(c) for side, c in found.items()}
  return found


def ceiling(commands: Iterable[Sequence[str]]) -> dict[str, float]:
  """The best rates of a large product, by the fastest of these sides.

  Processes of their own measure it, so that it takes no memory of the sides.
  """
  found = []
  for each in commands:
    side = Side(each)
    found.append(side.ask('ceiling'))
    side.close()
  return {key: max(rates[key] for rates in found) for key in found[0]}


def in_turns(
    running: Mapping[str, Side], rounds: int, method: str, *args: Any
) -> dict[str, list[Figures]]:
  """What a method of every side returns, in each round, by side."""
  found: dict[str, list[Figures]] = {name: [] for name in running}
  for _ in range(rounds):
    for name, side in running.items():
      found[name].append(side.ask(method, *args))
  return found


def parser(doc: str, malloc: bool = True) -> argparse.ArgumentParser:
  """A parser with the flags of sides.

  They are --peer_python, --rounds, --json, --side, and --plain_malloc if
  `malloc`.
  """
  result = argparse.ArgumentParser(
      description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = result.add_argument
  add(
      '--peer_python',
      metavar='FILE',
      help='Python that has the peer: runs it in turns with ours',
  )
  add('--rounds', type=int, default=3, help='turns of each')
  add('--json', action='store_true', help='print JSON only')
  add('--side', help=argparse.SUPPRESS)
  if malloc:
    add(
        '--plain_malloc',
        action='store_true',
        help='leave out the sides with tuned malloc, which is for CPUs',
    )
  return result


def peer_python(given: str | None) -> str | None:
  """The given Python, or this one if it has sentence-transformers."""
  if given is None and importlib.util.find_spec('sentence_transformers'):
    return sys.executable
  return given


def medians(turns: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """The median of each number of the turns, by name."""
  return {
      key: statistics.median(turn[key] for turn in turns)
      for key, value in turns[0].items()
      if not isinstance(value, str)
  }


def ratio(
    ours: Sequence[Mapping[str, Any]],
    theirs: Sequence[Mapping[str, Any]],
    key: str,
) -> float:
  """The median over rounds of theirs over ours: a round's load is alike."""
  return statistics.median(t[key] / o[key] for o, t in zip(ours, theirs))


def rates(
    rounds: Mapping[str, Sequence[Figures]],
    peaks: Mapping[str, int],
    count: int,
    what: str,
) -> str:
  """A table of the sides: how many of `count` a second, and the first's ratios.

  Args:
    rounds: turns of each side, ours first.
    peaks: bytes of each side.
    count: what a turn does.
    what: its name in the plural.
  """
  ours, rows = next(iter(rounds.values())), []
  for name, turns in rounds.items():
    f = medians(turns)
    rows.append(
        f'{name} | {count / f["seconds"]:.1f}'
        f' | {count / f["core_seconds"]:.1f}'
        f' | {f["cores_busy_elsewhere"]:.1f} | {mib(peaks.get(name))}'
        f' | {ratio(ours, turns, "seconds"):.2f}'
        f' | {ratio(ours, turns, "core_seconds"):.2f}'
    )
  return table(
      f'side | {what} a second | a core second | cores busy elsewhere'
      ' | peak memory | ours over this, clock | by cores', rows
  )


class Timed:
  """A side that does the same `work` again and again."""

  def work(self) -> Any:
    raise NotImplementedError

  def time(self) -> Figures:
    return turn(self.work)

  def peak(self) -> int:
    return peak_resident_bytes()


def compare(
    args: argparse.Namespace,
    commands: Mapping[str, Sequence[str]],
    count: int,
    what: str,
) -> None:
  """Runs sides that are `Timed` in turns and prints `rates`."""
  running = {name: Side(each) for name, each in commands.items()}
  for side in running.values():
    side.ask('time')  # Compiles, and fills caches.
  rounds = in_turns(running, args.rounds, 'time')
  peaks = {name: side.ask('peak') for name, side in running.items()}
  for side in running.values():
    side.close()
  if not args.json:
    print(rates(rounds, peaks, count, what))
  print(json.dumps({'flags': vars(args), what: count, 'rounds': rounds}))


def seconds(run: Callable[[], Any]) -> float:
  """Wall time of one call."""
  begin = time.perf_counter()
  run()
  return time.perf_counter() - begin


def turn(run: Callable[[], Any]) -> Figures:
  """One call: seconds, core seconds, and the machine's other load.

  core_seconds are of all threads of this process; cores_busy_elsewhere counts
  the cores that the rest of the machine kept busy meanwhile.
  """
  own, busy = time.process_time(), _busy_seconds()
  wall = seconds(run)
  own, busy = time.process_time() - own, _busy_seconds() - busy
  return {
      'seconds': wall,
      'core_seconds': own,
      'cores_busy_elsewhere': max(busy - own, 0.0) / wall,
  }


def timed(run: Callable[[], Any], calls: int = 1) -> Figures:
  """Means of `calls` turns."""
  turns = [turn(run) for _ in range(calls)]
  return {k: statistics.mean(t[k] for t in turns) for k in turns[0]}


def best_rates(flops: float, run: Callable[[], Any]) -> dict[str, float]:
  """The ceiling: the highest rate of `run`, by the clock and by cores."""
  run()
  rounds = [turn(run) for _ in range(10)]
  return {
      'flops_per_second': flops / min(r['seconds'] for r in rounds),
      'flops_per_core_second': flops / min(r['core_seconds'] for r in rounds),
  }


def _busy_seconds() -> float:
  """Core seconds that the machine has spent on anything; Linux only."""
  try:
    with open('/proc/stat') as f:
      user, nice, system = map(int, f.readline().split()[1:4])
  except FileNotFoundError:
    return 0.0
  return (user + nice + system) / os.sysconf('SC_CLK_TCK')


def field(file: str, name: str) -> int:
  """A number of a file of /proc; Linux only."""
  with open(file) as f:
    fields = dict(line.split(':', 1) for line in f)
  return int(fields[name].split()[0])


def free_memory() -> int:
  """Bytes of the machine's memory that a process can get; Linux only."""
  return 1024 * field('/proc/meminfo', 'MemAvailable')


def resident_bytes() -> int:
  """Resident bytes of this process now; Linux only."""
  return 1024 * field('/proc/self/status', 'VmRSS')


def peak_resident_bytes() -> int:
  """The most that `resident_bytes` has ever been."""
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class PeakMemory:
  """Watches this process from now on; Linux only."""

  def __init__(self):
    self._anonymous = 0
    threading.Thread(target=self._watch, daemon=True).start()

  def _watch(self) -> None:
    while True:
      now = 1024 * field('/proc/self/status', 'RssAnon')
      self._anonymous = max(self._anonymous, now)
      time.sleep(0.02)

  def peaks(self) -> dict[str, int]:
    """Bytes of all resident memory, and of pages that are no mapped file.

    Not `ru_maxrss`, which begins with that of the parent process.
    """
    return {
        'peak_bytes': 1024 * field('/proc/self/status', 'VmHWM'),
        'peak_anonymous_bytes': self._anonymous,
    }


def table(header: str, rows: Sequence[str]) -> str:
  """Markdown of lines whose cells are separated by ' | '."""
  rule = '|---' * (header.count(' | ') + 1) + '|'
  return '\n'.join([f'| {header} |', rule, *(f'| {row} |' for row in rows)])


def mib(size: float | None) -> str:
  """'12 MiB', '' for none."""
  return f'{size / 2**20:.0f} MiB' if size else ''


def one_line(error: Exception) -> str:
  """The start of an error, whose message may be pages long."""
  return f'{type(error).__name__}: {error}'.splitlines()[0][:300]
