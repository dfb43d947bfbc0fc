"""The order of the rooms: nothing imports what stands above it."""

import ast
import graphlib
import pathlib

import dualenc_jax

# From the ground up; `dualenc_jax` itself is the version and the Retriever's
# name.
ROOMS = (
    'errors suggest dualenc_jax io text parallel tensor_files search'
    ' compression figures data readers inspection models losses inference'
    ' generation interop objectives training run forecast index evaluation'
    ' mining results analysis report python_input'
    ' retriever mteb_encoder t5x_bridge recipes commands __main__'
).split()
PACKAGE = pathlib.Path(dualenc_jax.__file__).parent
FILES = {
    '.'.join(path.relative_to(PACKAGE.parent).with_suffix('').parts).removesuffix(
        '.__init__'
    ): path
    for path in PACKAGE.rglob('*.py')
    if path.relative_to(PACKAGE).parts[0] not in ('gin', 'tasks')
}


def imported(path: pathlib.Path) -> set[str]:
  """Modules of the package that a file imports, in functions too."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      inner = {f'{node.module}.{alias.name}' for alias in node.names}
      names |= inner & FILES.keys() or {node.module}
  return names


def room(module: str) -> str:
  return (module.split('.') + ['dualenc_jax'])[1]


GRAPH = {
    name: (imported(path) & FILES.keys()) - {name, 'dualenc_jax'}
    for name, path in FILES.items()
    if name != 'dualenc_jax'
}


def test_no_room_imports_one_above_it():
  arrows = {(room(a), room(b)) for a in GRAPH for b in GRAPH[a]}
  up = [(a, b) for a, b in arrows if ROOMS.index(a) < ROOMS.index(b)]
  assert not up


def test_no_circle_of_files():
  graphlib.TopologicalSorter(GRAPH).prepare()


def test_only_commands_know_gin():
  for name, path in FILES.items():
    assert room(name) == 'commands' or 'gin' not in imported(path), name
