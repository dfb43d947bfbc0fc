"""The one place that sets how tests run JAX: on simulated CPU devices.

Modules marked `devices(8)` have eight of them, all others one. Eight cost
commands nearly twice the time, and only what is about a mesh needs them.
"""

import collections
import ctypes
import gc
import importlib.util
import itertools
import os
import pathlib
import re
import resource
import sys
import tempfile

# Machine code is generated without LLVM's optimizations and in the simplest
# way, which takes a third of the time to compile; XLA's own passes, sharding
# among them, run as always, so arrays and what devices send stay as they are.
os.environ['XLA_FLAGS'] = (
    '--xla_backend_optimization_level=0'
    ' --xla_cpu_use_fusion_emitters=false'
    ' --xla_cpu_parallel_codegen_split_count=1'
)
os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['JAX_NUM_CPU_DEVICES'] = '1'
# Workers share the cores: more threads of torch, faiss and BLAS would only wait
# for each other, and burn cores meanwhile.
os.environ['OMP_NUM_THREADS'] = '1'
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'
# One arena: what the threads of eight devices free can be given back.
if sys.platform == 'linux':
  ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX
# Nothing that a user has cached is read or written; all of pytest-xdist's
# workers, which inherit this, share one folder of compiled programs.
if 'PYTEST_XDIST_WORKER' not in os.environ:
  _cache = tempfile.TemporaryDirectory(prefix='dualenc-tests-')
  os.environ['DUALENC_CACHE'] = _cache.name
# Commands keep programs there; all else compiles afresh, for the reason that
# `cli.runtime` gives.
_compiled = os.environ.pop('JAX_COMPILATION_CACHE_DIR', None)

import jax  # noqa: E402
from jax.extend import backend  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402
import pytest  # noqa: E402

os.environ['JAX_COMPILATION_CACHE_DIR'] = (
    _compiled or os.environ['DUALENC_CACHE'] + '/compiled'
)
jax.config.update('jax_numpy_rank_promotion', 'raise')

from dualenc_jax.cli import process  # noqa: E402

# Orbax would compile a slice for every shape, so that each of the simulated
# devices writes a part of it.
ocp.type_handlers.register_type_handler(
    jax.Array,
    ocp.type_handlers.ArrayHandler(
        min_slice_bytes_for_replica_parallel=1 << 20
    ),
    override=True,
)
# Commands have glibc keep what is freed; here, one after the other in one
# process, that would add up.
process.keep_freed_memory = lambda: None

# T5X is on no package index.
if importlib.util.find_spec('t5x') is None:
  collect_ignore = ['test_t5x_trainer.py']
# Bytes of a worker, before a file and within it; a training run, mostly the
# first test of its file, takes up to 750 MB more.
_MANY_BEFORE, _MANY = 800_000_000, 1_050_000_000
# What a worker may add to what it has once all that can be is forgotten: else
# one that never comes below the above forgets after every test, and compiles
# all again.
_ADDED_BEFORE, _ADDED = 250_000_000, 500_000_000
_ROOT = pathlib.Path(__file__).resolve().parents[1]
# By -m, the marks of modules that have nothing for it.
_LEFT_OUT = {
    'not slow and not nightly': ('slow', 'nightly'),
    'slow and not nightly': ('nightly',),
    'not nightly': ('nightly',),
    'nightly': (),
}
# And the mark without which a file has nothing for it.
_WANTED = {'slow and not nightly': 'mark.slow', 'nightly': 'mark.nightly'}
_WHOLE = re.compile(
    r'^pytestmark = (?:\[\s*)?pytest\.mark\.(slow|nightly)\b', re.M
)


@pytest.fixture(scope='session')
def shared() -> pathlib.Path:
  """The folder ../shared beside the clone; skips where there is none."""
  folder = _ROOT.parent / 'shared'
  if not folder.is_dir():
    pytest.skip('../shared is not beside this clone')
  return folder


def pytest_ignore_collect(collection_path: pathlib.Path, config) -> bool | None:
  """Leaves files unread, with their imports, of which -m wants no test."""
  markexpr = config.option.markexpr
  if markexpr not in _LEFT_OUT or collection_path.suffix != '.py':
    return None
  text, wanted = collection_path.read_text(), _WANTED.get(markexpr, '')
  whole = _WHOLE.search(text)
  left_out = whole and whole[1] in _LEFT_OUT[markexpr]
  return True if left_out or wanted not in text else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Sorts modules: those of eight devices first, then by number of tests.

  A worker then changes its devices once at most.
  """
  sizes = collections.Counter(item.path for item in items)
  items.sort(
      key=lambda item: (-_devices(item), -sizes[item.path], item.path)
  )


def pytest_terminal_summary(terminalreporter) -> None:
  """Prints the minutes of tests by folder."""
  seconds: collections.Counter = collections.Counter()
  count: collections.Counter = collections.Counter()
  for report in itertools.chain(*terminalreporter.stats.values()):
    if isinstance(report, pytest.TestReport):
      folder = report.nodeid.rpartition('::')[0].removeprefix('tests/')
      folder = folder.partition('/')[0]
      seconds[folder] += report.duration
      count[folder] += report.when == 'call'
  for folder, value in seconds.most_common():
    terminalreporter.write_line(
        f'{value / 60:6.2f} min {count[folder]:5} tests  {folder}'
    )


def pytest_collection_finish():
  """What is imported stays: the collector need not look at it again.

  Nor need it look so often; it takes a quarter of the time of tracing.
  """
  gc.collect()
  gc.freeze()
  gc.set_threshold(20_000, 10, 10)


def _devices(node: pytest.Item | pytest.Module) -> int:
  mark = node.get_closest_marker('devices')
  return mark.args[0] if mark else 1


@pytest.fixture(scope='module', autouse=True)
def state_of_jax(request):
  """Gives JAX the devices of a module; drops what a command has told it."""
  wanted = _devices(request.node)
  if jax.config.jax_num_cpu_devices != wanted:
    jax.clear_caches()
    backend.clear_backends()
    jax.config.update('jax_num_cpu_devices', wanted)
  forget_programs_beyond(_MANY_BEFORE, _ADDED_BEFORE)
  yield
  jax.config.update('jax_compilation_cache_dir', None)


@pytest.fixture(autouse=True)
def forget_programs():
  yield
  forget_programs_beyond(_MANY, _ADDED)


def forget_programs_beyond(size: int, added: int) -> None:
  """Drops what was compiled once a worker has so many bytes."""
  global _kept
  if sys.platform != 'linux' or resident() <= max(size, _kept + added):
    return
  jax.clear_caches()
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)
  _kept = resident()


def resident() -> int:
  """Bytes of memory that this process has."""
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * resource.getpagesize()


# Bytes after all was forgotten last.
_kept = 0
