"""Plants small faults in the package, one at a time: which tests notice?

  python tests/mutations.py [--only=WORD] [--jobs=2] [--tree=CLONE]

tests/data/faults.toml has the faults, each with the tests that should notice
it. In a copy of the tree these run, the fast ones first, then the slow ones.
Prints a line a fault as it is settled, with the test that failed; ends with 1
if one was not noticed.
"""

import argparse
from collections.abc import Sequence
from concurrent import futures
import dataclasses
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
FAULTS = ROOT / 'tests' / 'data' / 'faults.toml'
# Marks of the lines in which a fault may be noticed, by name.
LINES = {
    'fast': 'not slow and not nightly', 'slow': 'slow and not nightly',
    'nightly': 'nightly',
}


@dataclasses.dataclass(frozen=True)
class Fault:
  """A text of a file that is replaced, and the tests that should notice."""

  what: str
  file: str
  old: str
  new: str
  tests: Sequence[str]


def load(path: pathlib.Path = FAULTS) -> list[Fault]:
  """Reads the faults; raises ValueError for one without a place of its own."""
  faults = [Fault(**row) for row in tomllib.loads(path.read_text())['fault']]
  for fault in faults:
    count = (ROOT / fault.file).read_text().count(fault.old)
    if count != 1:
      raise ValueError(
          f'{path.name}, "{fault.what}": {fault.file} has its text {count}'
          ' times, expected once'
      )
  return faults


def copy_tree(tree: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Copies the tracked files of a clone, beside a link to its ../shared."""
  names = subprocess.run(
      ['git', 'ls-files', '-z'], cwd=tree, check=True, capture_output=True,
      text=True,
  ).stdout.split('\0')
  copy = folder / 'main'
  for name in filter(None, names):
    if (tree / name).is_file():
      (copy / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(tree / name, copy / name)
  shared = tree.parent / 'shared'
  if shared.is_dir():
    (folder / 'shared').symlink_to(shared)
  return copy


def notice(fault: Fault, copy: pathlib.Path) -> tuple[str, str]:
  """The line that notices the fault, and its first test that fails."""
  path = copy / fault.file
  whole = path.read_text()
  try:
    if whole.count(fault.old) != 1:
      return 'absent', fault.file
    path.write_text(whole.replace(fault.old, fault.new))
    _forget_bytecode(path)
    own = [test for test in fault.tests if (copy / test).exists()]
    for line, marks in LINES.items():
      if failed := _first_failure(copy, marks, own):
        return line, failed
    return 'NEITHER', ''
  finally:
    path.write_text(whole)
    _forget_bytecode(path)


def _forget_bytecode(path: pathlib.Path) -> None:
  """Python compares seconds and size, which a small fault may leave as is."""
  for file in (path.parent / '__pycache__').glob(f'{path.stem}.*.pyc'):
    file.unlink()


def _first_failure(
    copy: pathlib.Path, marks: str, tests: Sequence[str]
) -> str:
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', '-n0', '-x', '-m', marks, *tests],
      cwd=copy, env=os.environ | {'PYTHONPATH': str(copy)}, text=True,
      capture_output=True,
  )
  # 0: all passed; 5: none is in this line.
  if done.returncode in (0, 5):
    return ''
  if done.returncode not in (1, 2):
    raise RuntimeError(done.stdout[-1000:] + done.stderr[-1000:])
  failed = re.findall(r'^_{3,} (.+) _{3,}$', done.stdout, re.M)
  return failed[-1] if failed else done.stdout[-300:]


def main(argv: Sequence[str] | None = None) -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--only', default='', help='a word of file or fault')
  parser.add_argument('--jobs', type=int, default=os.cpu_count() or 1)
  parser.add_argument('--tree', type=pathlib.Path, default=ROOT)
  args = parser.parse_args(argv)
  faults = [f for f in load() if args.only in f'{f.file} {f.what}']
  noticed: dict[str, int] = {}
  with tempfile.TemporaryDirectory() as folder:
    # Programs that a fault leaves alone are compiled once.
    os.environ['JAX_COMPILATION_CACHE_DIR'] = f'{folder}/compiled'
    copies: queue.Queue[pathlib.Path] = queue.Queue()
    for job in range(args.jobs):
      copies.put(copy_tree(args.tree, pathlib.Path(folder) / str(job)))

    def settle(fault: Fault) -> None:
      copy, start = copies.get(), time.monotonic()
      line, test = notice(fault, copy)
      copies.put(copy)
      noticed[line] = noticed.get(line, 0) + 1
      print(
          f'{line:8} {time.monotonic() - start:4.0f} s  {fault.file}:'
          f' {fault.what}  {test}',
          flush=True,
      )

    with futures.ThreadPoolExecutor(args.jobs) as pool:
      for _ in pool.map(settle, faults):
        pass
  print(', '.join(f'{line}: {n}' for line, n in sorted(noticed.items())))
  return int(bool(noticed.keys() - LINES.keys()))


if __name__ == '__main__':
  sys.exit(main())
