"""No number that is trained on is scaled by how many devices there are.

Losses are over global arrays, so a factor of the device count is an error that
shows on some meshes only. This reads the code of the rooms that training goes
through and finds each product, quotient and remainder with a device count in
it; those that only plan where things go are listed.
"""

import ast
import pathlib

import pytest

import dualenc_jax

ROOT = pathlib.Path(dualenc_jax.__file__).parent
ROOMS = 'losses', 'models', 'objectives', 'parallel', 'training'
PERMITTED = {
    'losses/similarity.py': {
        "DENSE_BYTES * (mesh.shape.get('data', 1) if mesh else 1)",
        'min((x.size for x in vectors.values())) // shards',
        'size % mesh.size',
        "size % mesh.shape['data']",
    },
    # The place of a neighbour, and whether two are opposite.
    'losses/ring.py': {'(i + shift) % n', 'self.devices % 2'},
    'losses/negative_cache.py': {
        '-count % math.lcm(multiple, ring.devices)',
        '(count + padding) // ring.devices',
        'ring.place() * share',
    },
    'losses/cache_sampling.py': {'self.top_k % devices'},
    'parallel/partitioning.py': {
        'len(devices) // self.model_parallel',
        'len(devices) % self.model_parallel',
        'batch_size % data',
        'size % data',
        'size % self.mesh.shape[axis]',
    },
    'parallel/micro_batches.py': {
        'rows % devices', 'size % devices', 'size // devices'
    },
    'parallel/split_params.py': {'shape[split] // devices'},
    'objectives/from_pairs.py': {
        'stack.num_heads % devices',
        # Cells of a batch, which say where a text lies, and no more.
        'devices * (size // (self.micro_batch_size or size))',
    },
    'objectives/joint_pq.py': {'size % devices'},
    'objectives/passage_states.py': {'total // devices'},
}

_OPERATORS = (
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult, ast.LShift,
    ast.RShift,
)
_NAMES = {'devices', 'num_devices', 'num_shards', 'shards', 'world_size'}
# Functions that give a count of devices, that pass one on, and that multiply.
_COUNTS = {'axis_size', 'device_count', 'local_device_count', 'process_count'}
_PASSING = {'prod', 'sum', 'max', 'min', 'int', 'float', 'array'}
_PRODUCTS = {
    'divide', 'divmod', 'floor_divide', 'mod', 'multiply', 'remainder',
    'true_divide',
}


def violations(source):
  """Code of every product or quotient in which a device count takes part."""
  tree = ast.parse(source)
  counts = _assigned_counts(tree)
  for node in ast.walk(tree):
    match node:
      case ast.BinOp(left=one, op=op, right=other) | ast.AugAssign(
          target=one, op=op, value=other
      ) if isinstance(op, _OPERATORS):
        operands = [one, other]
      case ast.Call(func=f, args=operands) if _name(f) in _PRODUCTS:
        pass
      case ast.Call(func=f) if _name(f) == 'pmean':
        # A sum over devices, divided by their number.
        yield ast.unparse(node)
        continue
      case _:
        continue
    if any(_has_count(operand, counts) for operand in operands):
      yield ast.unparse(node)


def _assigned_counts(tree):
  """Names that somewhere in the file are given a device count."""
  counts, found = set(), set(_NAMES)
  while not found <= counts:
    counts |= found
    for node in ast.walk(tree):
      match node:
        case ast.Assign(targets=targets, value=value):
          pass
        case ast.AnnAssign(target=t, value=value) | ast.NamedExpr(
            target=t, value=value
        ):
          targets = [t]
        case _:
          continue
      if _is_count(value, counts):
        found |= {_name(target) for target in targets} - {None}
  return counts


def _is_count(node, counts):
  """Whether a value is a count of devices, or made of one by arithmetic."""
  match node:
    case ast.Name() | ast.Attribute() if _name(node) in counts:
      return True
    case ast.Attribute(value=value, attr='size'):
      return _is_mesh(value)
    case ast.Subscript(value=ast.Attribute(value=value, attr='shape')):
      return _is_mesh(value)
    case ast.Call(
        func=ast.Attribute(
            value=ast.Attribute(value=value, attr='shape'), attr='get'
        )
    ) if _is_mesh(value):
      return True
    case ast.Call(func=f, args=args):
      name = _name(f)
      return (
          name in _COUNTS
          or name == 'psum' and isinstance(args[0], ast.Constant)
          or name == 'len' and _name(args[0]) in ('devices', 'local_devices')
          or name in _PASSING and any(_has_count(arg, counts) for arg in args)
      )
    case ast.BinOp() | ast.UnaryOp() | ast.IfExp():
      return any(_is_count(x, counts) for x in ast.iter_child_nodes(node))
  return False


def _has_count(node, counts):
  return any(_is_count(inner, counts) for inner in ast.walk(node))


def _is_mesh(node):
  name = _name(node)
  return name is not None and (name.endswith('mesh') or name == 'devices')


def _name(node):
  """The last part of a dotted name, called or not; None of anything else."""
  match node:
    case ast.Call(func=func):
      return _name(func)
    case ast.Attribute(attr=name) | ast.Name(id=name):
      return name


def test_only_plans_use_the_number_of_devices():
  found = {}
  for path in (path for room in ROOMS for path in (ROOT / room).rglob('*.py')):
    if codes := set(violations(path.read_text())):
      found[path.relative_to(ROOT).as_posix()] = codes
  assert found == PERMITTED


@pytest.mark.parametrize(
    'planted',
    [
        'loss / jax.device_count()', 'loss * self.mesh.size',
        "grads * partitioner.mesh.shape['data']",
        'loss * jax.lax.axis_size(axes)', 'loss / jax.lax.psum(1, axes)',
        "jax.lax.pmean(loss, 'data')", 'loss / len(jax.devices())',
        'loss * (1 if mesh is None else mesh.size)',
        'jnp.divide(loss, jax.process_count())',
        'n = jax.lax.psum(1, axes)\nm = 2 + n\nloss / m',
        'n = math.prod(mesh.shape[a] for a in axes)\nloss *= n',
        'def f(self):\n  n = self.devices\n  return x / n',
        'loss * 0.5 ** devices', 'loss / mesh.devices.size',
    ],
)
def test_a_factor_is_found(planted):
  assert list(violations(planted))


@pytest.mark.parametrize(
    'harmless',
    [
        'loss / x.shape[0]', 'jax.lax.psum(loss, axes) / size',
        '1 + jax.device_count()', '2 * len(devices_by_name)',
    ],
)
def test_nothing_else_is_found(harmless):
  assert not list(violations(harmless))
