"""Gives hostile files to every reader: what is no error of its own?

A reader reads a good file of its kind, changed, and must read it or raise
UserError. Anything else, a crash of the process, and a file that takes more
than a few seconds or gigabytes, is a finding: it is printed once, with the line
of the library where it came up, and its file is kept in --out. Files are
changed by atheris, which keeps those that reach lines no other has reached, and
by odd tokens and values. Each reader runs in a process of its own. See
benchmarks/README.md.
"""

import argparse
import collections
import contextlib
import gzip
import json
import logging
import multiprocessing
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import tempfile
import time
import traceback
import zlib

import atheris

with atheris.instrument_imports(['dualenc_jax']):
  import fuzz_files
  import fuzz_made_files

  from dualenc_jax.utils.errors import UserError

_SECONDS = 10
_GIGABYTES = 4
_PACKAGE = 'dualenc_jax'
_READERS = fuzz_files.READERS | fuzz_made_files.READERS
# In the first byte of an input: its other bits say which file it is.
_PACKED = 0x80
# Bytes that any file may grow to.
_LONGEST = 120_000
# What parsers trip over.
_TOKENS = (
    b'', b'\x00', b'\xff', b'\xed\xa0\x80', b'\xef\xbb\xbf', b'\t', b'\n',
    b'\r', b'\r\n', b'\x0b', b'\x1c', b'\x85', '\u2028'.encode(), b'"', b'""',
    b'\\', b'\\ud800', b'\\u0000', b',', b':', b'{', b'}', b'[', b']', b'1_0',
    '\u0663'.encode(), b'[' * 100_000, b'{"a":' * 20_000, b'../' * 9,
    b'/dev/zero', b'A' * 70_000,
)
# What stands in the place of a number, a string in quotes or a word of JSON.
_VALUES = (
    b'null', b'true', b'0', b'-1', b'1', b'3', b'255', b'2147483648',
    b'4294967296', b'9007199254740992', b'9223372036854775808',
    b'18446744073709551616', b'0.5', b'-0', b'1e308', b'1e999', b'NaN',
    b'-Infinity', b'9' * 400, b'9' * 5000, b'""', b'" "', b'"a"', b'"1"',
    b'"\\u0000"', b'"\\ud800"', b'"../../x"', b'"/dev/zero"', b'[]', b'{}',
    b'[[]]', b'[{}]', b'{"": ""}', b'[null]', b'[0, 1]', b'["a", "b"]',
    b'{"a": {}}', b'"%s"' % (b'a' * 5000), b'[' * 900 + b']' * 900,
    b'{"a":' * 990 + b'1' + b'}' * 990,
)
_SCALAR = re.compile(
    rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e-?\d+)?|true|false|null'
)


class TooLong(BaseException):
  """A file has taken too long; no reader catches it."""


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
      '--reader', action='append', choices=_READERS,
      help='several; all by default',
  )
  parser.add_argument('--inputs', type=int, default=100_000, help='of each')
  parser.add_argument('--minutes', type=float, default=10, help='of each')
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--out', type=pathlib.Path, help='for files that fail')
  args = parser.parse_args()
  for reader in args.reader or _READERS:
    _in_own_process(reader, args)


def _in_own_process(reader: str, args: argparse.Namespace) -> None:
  """Prints a line of the table, and the findings."""
  print(f'| {reader} |', end=' ', flush=True)
  with tempfile.TemporaryDirectory() as folder:
    found = pathlib.Path(folder) / 'found.json'
    # Not spawned: what is imported stays so.
    process = multiprocessing.get_context('fork').Process(
        target=_fuzz, args=(reader, args, pathlib.Path(folder), found)
    )
    process.start()
    process.join()
    if not found.exists():
      if args.out:
        shutil.copytree(folder, args.out / reader / 'crash', dirs_exist_ok=True)
      print(f'ended with {process.exitcode} |', flush=True)
      return
    counted = json.loads(found.read_text())
  print(
      f'{counted["inputs"]:,} | {counted["refused"]:.0%} |'
      f' {len(counted["findings"])} | {counted["seconds"]:.0f} |',
      flush=True,
  )
  for what, count in counted['findings'].items():
    print(f'  {count:>6} x {what}', flush=True)


def _fuzz(
    name: str,
    args: argparse.Namespace,
    folder: pathlib.Path,
    found: pathlib.Path,
) -> None:
  """Writes inputs, findings and seconds of a reader as JSON."""
  logging.disable(logging.CRITICAL)
  signal.signal(signal.SIGALRM, _too_long)
  findings: collections.Counter = collections.Counter()
  files, seeds = folder / 'files', folder / 'seeds'
  files.mkdir()
  seeds.mkdir()
  reader = _READERS[name](files)
  good = [path.read_bytes() for path in reader.files]
  reader.read()  # The good ones are read, and libraries imported.
  inputs_of_good = []
  for place, content in enumerate(good):
    inputs_of_good.append(bytes([place]) + content)
    if _is_packed(content):
      content = zlib.decompress(content, 31)
      inputs_of_good.append(bytes([place | _PACKED]) + content)
  for number, data in enumerate(inputs_of_good):
    (seeds / str(number)).write_bytes(data)
  inputs = refused = 0
  began = time.monotonic()

  def one(data: bytes) -> None:
    nonlocal inputs, refused
    seconds = time.monotonic() - began
    if inputs == args.inputs or seconds > 60 * args.minutes:
      counted = {
          'inputs': inputs, 'refused': refused / inputs, 'findings': findings,
          'seconds': seconds,
      }
      found.write_text(json.dumps(counted))
      os._exit(0)  # libFuzzer does not return.
    place, content = (data[0] if data else 0), data[1:]
    if place & _PACKED:
      content = gzip.compress(content, 1, mtime=0)
    place = (place & ~_PACKED) % len(good)
    path = reader.files[place]
    path.write_bytes(content)
    inputs += 1
    what, error = _read(reader)
    refused += what == 'refused'
    if what not in ('read', 'refused'):
      if not findings[what] and args.out:
        kept = args.out / name / f'{len(findings)}-{path.name}'
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(content)
        kept.with_name(f'{kept.name}.txt').write_text(error)
      findings[what] += 1
    path.write_bytes(good[place])

  def changed(data: bytes, size: int, seed: int) -> bytes:
    """An input in place of one, of the same file, of `size` bytes at most."""
    rng = random.Random(seed)
    # libFuzzer keeps but one of good files that reach the same lines.
    if not data or rng.random() < 0.3:
      data = rng.choice(inputs_of_good)
    if rng.random() < 0.4:
      found = [match.span() for match in _SCALAR.finditer(data, 1)]
      if found and rng.random() < 0.6:
        (start, end), new = rng.choice(found), rng.choice(_VALUES)
      else:
        start = end = rng.randrange(1, len(data) + 1)
        new = rng.choice(_TOKENS)
      other = data[:start] + new + data[end:]
      if len(other) <= size:
        return other
    return data[:1] + atheris.Mutate(data[1:], size - 1)

  longest = max(_LONGEST, 2 * max(map(len, good)))
  options = {
      'seed': args.seed + 1, 'max_len': longest, 'timeout': 0,
      'rss_limit_mb': 0, 'verbosity': 0, 'artifact_prefix': f'{folder}/crash-',
  }
  with open(folder / 'log', 'wb') as log:
    os.dup2(log.fileno(), 2)
  flags = [f'-{option}={value}' for option, value in options.items()]
  atheris.Setup(['', *flags, str(seeds)], one, custom_mutator=changed)
  _limit_memory()
  atheris.Fuzz()


def _is_packed(content: bytes) -> bool:
  return content[:2] == b'\x1f\x8b'


def _read(reader: fuzz_files.Reader) -> tuple[str, str]:
  """'read', 'refused', or what else came of it; and its traceback."""
  signal.setitimer(signal.ITIMER_REAL, _SECONDS)
  try:
    with contextlib.redirect_stdout(None):
      reader.read()
  except UserError as e:
    return 'refused' if str(e).strip() else 'an empty message', ''
  except (Exception, TooLong) as e:
    frames = traceback.extract_tb(e.__traceback__)
    own = [f for f in frames if f'/{_PACKAGE}/' in f.filename] or frames
    place = f'{pathlib.Path(own[-1].filename).name}:{own[-1].lineno}'
    return f'{type(e).__name__} at {place}', traceback.format_exc()
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
  return 'read', ''


def _too_long(*unused) -> None:
  raise TooLong(f'more than {_SECONDS} seconds')


def _limit_memory() -> None:
  """To what there is and some gigabytes more, then MemoryError."""
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[0])
  most = pages * resource.getpagesize() + _GIGABYTES * 2**30
  resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == '__main__':
  main()
