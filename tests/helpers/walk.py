"""Counts the files of the package that functions pass, and ways between them.

  python tests/helpers/walk.py FILE:FUNCTION,... COMMAND [flags]

Runs a command of `dualenc`, and prints the files whose functions are called
within the functions that are named, then the numbers of files and of hops:
pairs of files of which one calls the other, perhaps through JAX.
"""

import pathlib
import sys
import threading
from types import FrameType

import dualenc_jax

ROOT = f'{pathlib.Path(dualenc_jax.__file__).parent}/'


def file_of(frame: FrameType | None) -> str | None:
  """The file of a frame of the package; None for modules and other code."""
  if frame is None or frame.f_code.co_name == '<module>':
    return None
  name = frame.f_code.co_filename
  return name.removeprefix(ROOT) if name.startswith(ROOT) else None


def main() -> None:
  starts = {tuple(place.split(':')) for place in sys.argv[1].split(',')}
  files, hops, within = set(), set(), []

  def profile(frame: FrameType, event: str, argument: object) -> None:
    if event == 'return' and within and within[-1] is frame:
      within.pop()
    file = file_of(frame) if event == 'call' else None
    if file is None:
      return
    is_start = (file, frame.f_code.co_name) in starts
    if is_start:
      within.append(frame)
    if not within:
      return
    files.add(file)
    caller = frame.f_back
    while caller is not None and file_of(caller) is None:
      caller = caller.f_back
    if frame is not within[0] and file_of(caller) not in (None, file):
      hops.add((file_of(caller), file))

  from dualenc_jax.cli import main as cli

  threading.setprofile(profile)
  sys.setprofile(profile)
  try:
    status = cli.main(sys.argv[2:])
  finally:
    sys.setprofile(None)
    threading.setprofile(None)
  print('\n'.join(sorted(files)))
  print(f'{len(files)} files, {len(hops)} hops')
  sys.exit(status)


if __name__ == '__main__':
  main()
