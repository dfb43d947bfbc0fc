"""The order of the rooms: nothing imports what stands above it."""

import ast
import graphlib
import pathlib

import dualenc_jax

# From the ground up: packages, and those within packages.
ROOMS = (
    'utils utils.tensor_files parallel data.text data data.readers data.check'
    ' models retrieval.search retrieval.compression retrieval.encoding'
    ' retrieval.index losses checkpoints objectives training forecast'
    ' evaluation evaluation.results evaluation.analysis evaluation.report'
    ' retriever mteb_encoder t5x_bridge pipelines.mining pipelines.generation'
    ' pipelines.recipes pipelines.serving cli __main__'
).split()
# So many packages a reader can hold.
MOST = 13
PACKAGE = pathlib.Path(dualenc_jax.__file__).parent
FILES = {
    '.'.join(path.relative_to(PACKAGE.parent).with_suffix('').parts).removesuffix(
        '.__init__'
    ): path
    for path in PACKAGE.rglob('*.py')
    if path.relative_to(PACKAGE).parts[0] not in ('gin', 'tasks')
}
# Packages of rooms alone, which hold no code.
ONLY_ROOMS = 'dualenc_jax', 'dualenc_jax.retrieval', 'dualenc_jax.pipelines'


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
  _, first, *rest = module.split('.')
  nested = '.'.join([first, *rest[:1]])
  return nested if nested in ROOMS else first


GRAPH = {
    name: (imported(path) & FILES.keys()) - {name, *ONLY_ROOMS}
    for name, path in FILES.items()
    if name not in ONLY_ROOMS
}


def test_no_room_imports_one_above_it():
  arrows = {(room(a), room(b)) for a in GRAPH for b in GRAPH[a]}
  up = [(a, b) for a, b in arrows if ROOMS.index(a) < ROOMS.index(b)]
  assert not up


def test_no_circle_of_files():
  graphlib.TopologicalSorter(GRAPH).prepare()


def test_packages_are_few_and_say_what_they_hold():
  inits = [p for p in FILES.values() if p.name == '__init__.py']
  assert all(ast.get_docstring(ast.parse(p.read_text())) for p in inits)
  assert len([p for p in inits if p.parent.parent == PACKAGE]) <= MOST


def test_only_commands_know_gin():
  for name in GRAPH:
    assert room(name) == 'cli' or 'gin' not in imported(FILES[name]), name
