"""No number is multiplied or divided by how many devices there are.

The losses are over global arrays, so a factor of the device count is an error
that shows on some meshes only. This reads the code and finds each product,
quotient and remainder that has a device count in it; those that only plan where
things go are listed.
"""

import ast
import pathlib

import pytest

import dualenc_jax

ROOT = pathlib.Path(dualenc_jax.__file__).parent
# Code by file, and why it is none of a number that is trained on.
PERMITTED = {
    'losses/similarity.py': {
        "DENSE_BYTES * (mesh.shape.get('data', 1) if mesh else 1)": (
            'the limit of `auto`, in bytes'
        ),
        'min((x.size for x in vectors.values())) // shards': (
            'size of a shard, for the tile'
        ),
        'size % mesh.size': 'a check that the rows divide',
        "size % mesh.shape['data']": 'a check that the rows divide',
    },
    'losses/ring.py': {
        '(i + shift) % n': 'the place of a neighbour',
        'self.devices % 2': 'whether two are opposite',
    },
    'losses/negative_cache.py': {
        'cache.size % ring.devices': 'a check that the slots divide',
        'rows % ring.devices': 'a check that the rows divide',
        '-count % math.lcm(multiple, ring.devices)': 'rows that are none',
        '(count + padding) // ring.devices': 'rows of a device',
        'ring.place() * share': 'the first of them',
    },
    'losses/code_search.py': {
        'total % ring.devices': 'a check that the rows divide',
        'len(query) % ring.devices': 'a check that the queries divide',
    },
    'losses/cache_sampling.py': {
        'self.top_k % devices': 'a check that the groups divide',
    },
    'parallel/partitioning.py': {
        'len(devices) // self.model_parallel': 'the shape of the mesh',
        'len(devices) % self.model_parallel': 'a check that the axes divide',
        'batch_size % data': 'a check that the rows divide',
        'size % data': 'a check that moments divide',
        'size % self.mesh.shape[axis]': 'a check that parameters divide',
    },
    'parallel/micro_batches.py': {
        'rows % devices': 'a check that the rows divide',
        'size % devices': 'a check that those of a micro-batch divide',
        'size // devices': 'rows of a micro-batch on a device',
    },
    'parallel/split_params.py': {
        'shape[split] // devices': "a device's part of a parameter",
    },
    'objectives/from_pairs.py': {
        'stack.num_heads % devices': 'a check that heads divide',
        'devices * (size // (self.micro_batch_size or size))': (
            'cells of a batch, which say where a text lies, and no more'
        ),
    },
    'objectives/joint_pq.py': {
        'quantiser.score.shape[1] % devices': 'a check that centroids divide',
    },
    'objectives/passage_states.py': {'total // devices': 'bytes a device'},
    'compression/lanes.py': {'rows * devices'},
    'forecast/encode.py': {
        'devices * rows': 'rows of all devices',
        '_STEPS * devices': 'steps of all devices',
        '_STEPS * devices * experiment.eval_batch_size': 'their passages',
    },
    'forecast/search.py': {
        '2.0 * queries * rows * len(on.devices)': 'operations of all devices',
        '2.0 * queries * rows * len(on.devices) * dim': 'the same',
        'on.generation.memory * len(on.devices)': 'memory of all devices',
        'exact_search.RESIDENT * memory': 'what of it passages may take',
        'exact_search.RESIDENT * memory / (4 * dim)': 'passages in it',
    },
    'forecast/report.py': {
        'seconds * on.generation.flops * len(on.devices)': (
            'what a slice can do in a time'
        ),
        'found.rows * len(on.devices)': 'passages of all devices',
        'seconds * 1000000.0 / passages': 'the time of a million',
        'seconds * 1000000.0 / passages * 1000.0': 'the same, in milliseconds',
        'real.work.tokens / real.passages': 'tokens of a passage, of a mean',
        'real.passages / total': 'passages a second',
    },
    'generation/writer.py': {
        'p.devices * p.slots': 'slots of all devices',
        'p.devices * p.entered': 'sources that all take in at once',
        '-len(rows) // p.devices': 'those that are left, of a device',
        "self.targets * partitioner.mesh.shape['data']": (
            'targets of all devices'
        ),
    },
    'search/search_programs.py': {
        'left // devices': 'rows of a corpus a device',
        '-left // devices': 'the same, rounded up',
        'power_of_two(left // devices + 1) // 2': 'the same, rounded down',
        'rows * devices': 'rows of a block',
        'self.devices * rows': 'the same',
    },
    'search/exact_search.py': {
        '-len(passages) // devices.size': 'rows of a corpus a device',
        '4 * rows': 'bytes of scores a device',
        'scores // (4 * rows)': 'queries whose scores fit a device',
        'RESIDENT * memory * devices.size': 'memory of all devices',
    },
    'io/machine.py': {
        'machine_memory() // jax.local_device_count()': (
            'memory of a simulated device, in bytes'
        ),
    },
}

_OPERATORS = (
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult, ast.LShift,
    ast.RShift,
)
_COUNTS = {  # Functions that give a count of devices.
    'axis_size',
    'device_count',
    'local_device_count',
    'process_count',
}
_NAMES = {'devices', 'num_devices', 'num_shards', 'shards', 'world_size'}
_PRODUCTS = {  # Functions that multiply or divide their arguments.
    'divide',
    'divmod',
    'floor_divide',
    'mod',
    'multiply',
    'remainder',
    'true_divide',
}


def violations(source):
  """Code of every product or quotient in which a device count takes part."""
  tree = ast.parse(source)
  counts = _assigned_counts(tree)
  for node in ast.walk(tree):
    if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
      operands = node.left, node.right
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, _OPERATORS):
      operands = node.target, node.value
    elif isinstance(node, ast.Call) and _name(node.func) in _PRODUCTS:
      operands = node.args
    elif isinstance(node, ast.Call) and _name(node.func) == 'pmean':
      yield ast.unparse(node)  # A sum over devices, divided by their number.
      continue
    else:
      continue
    if any(_has_count(operand, counts) for operand in operands):
      yield ast.unparse(node)


def _assigned_counts(tree):
  """Names that somewhere in the file are given a device count."""
  counts = set(_NAMES)
  while True:
    found = set()
    for node in ast.walk(tree):
      if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
      elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value:
        targets, value = [node.target], node.value
      else:
        continue
      names = {_name(target) for target in targets} - {None}
      if names and _is_count(value, counts):
        found |= names
    if found <= counts:
      return counts
    counts |= found


def _is_count(node, counts):
  """Whether a value is a count of devices, or made of one by arithmetic."""
  if isinstance(node, (ast.Name, ast.Attribute)) and _name(node) in counts:
    return True
  if isinstance(node, ast.Attribute):
    return node.attr == 'size' and _is_mesh(node.value)
  if isinstance(node, ast.Subscript):
    return _is_shape_of_mesh(node.value)
  if isinstance(node, ast.Call):
    name = _name(node.func)
    if name in _COUNTS:
      return True
    if name == 'psum':
      return isinstance(node.args[0], ast.Constant)
    if name == 'get' and _is_shape_of_mesh(node.func.value):
      return True
    if name == 'len':
      return _name(node.args[0]) in ('devices', 'local_devices')
    if name in ('prod', 'sum', 'max', 'min', 'int', 'float', 'array'):
      return any(_has_count(arg, counts) for arg in node.args)
    return False
  if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp)):
    return any(_is_count(x, counts) for x in ast.iter_child_nodes(node))
  return False


def _has_count(node, counts):
  return any(_is_count(inner, counts) for inner in ast.walk(node))


def _is_mesh(node):
  name = _name(node)
  return name is not None and (name.endswith('mesh') or name == 'devices')


def _is_shape_of_mesh(node):
  return (
      isinstance(node, ast.Attribute)
      and node.attr == 'shape'
      and _is_mesh(node.value)
  )


def _name(node):
  """The last part of a dotted name, called or not; None of anything else."""
  if isinstance(node, ast.Call):
    return _name(node.func)
  if isinstance(node, ast.Attribute):
    return node.attr
  return node.id if isinstance(node, ast.Name) else None


def test_only_plans_use_the_number_of_devices():
  found = {}
  for path in ROOT.rglob('*.py'):
    if codes := set(violations(path.read_text())):
      found[path.relative_to(ROOT).as_posix()] = codes
  assert found == {file: set(codes) for file, codes in PERMITTED.items()}


@pytest.mark.parametrize(
    'planted',
    [
        'loss / jax.device_count()',
        'loss * self.mesh.size',
        "grads / mesh.shape['data']",
        "grads * partitioner.mesh.shape['data']",
        'loss * jax.lax.axis_size(axes)',
        'loss / jax.lax.psum(1, axes)',
        "jax.lax.pmean(loss, 'data')",
        'loss / len(jax.devices())',
        'loss * (1 if mesh is None else mesh.size)',
        'jnp.divide(loss, jax.process_count())',
        'n = jax.lax.psum(1, axes)\nm = 2 + n\nloss / m',
        'n = math.prod(mesh.shape[a] for a in axes)\nloss *= n',
        'def f(self):\n  n = self.devices\n  return x / n',
        'loss * 0.5 ** devices',
        'loss / mesh.devices.size',
    ],
)
def test_a_factor_is_found(planted):
  assert list(violations(planted))


@pytest.mark.parametrize(
    'harmless',
    [
        'loss / temperature',
        'loss / x.shape[0]',
        'x.size * 4',
        'jax.lax.psum(loss, axes) / size',
        '1 + jax.device_count()',
        '2 * len(devices_by_name)',
    ],
)
def test_nothing_else_is_found(harmless):
  assert not list(violations(harmless))
