"""Which tensor each parameter starts from: rules, defaults, and refusals."""

import numpy as np
import pytest

from dualenc_jax.checkpoints import assignment
from dualenc_jax.checkpoints.weights import param_shapes, Weights
from dualenc_jax.models import DualEncoder, Projection, T5Encoder, TokenEmbedder
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor


def encoder(layers=2):
  return T5Encoder(layers, 2, 4, 16)


def model(layers=2, **passage) -> DualEncoder:
  return DualEncoder(
      TokenEmbedder(32, 8), encoder(layers), Projection(6), **passage
  )


def own_passage_tower(layers=2) -> dict:
  return {
      'passage_token_embedder': TokenEmbedder(32, 8),
      'passage_encoder': encoder(layers),
      'passage_projection': Projection(6),
  }


def weights_of(model: DualEncoder, *without: str) -> Weights:
  tensors = {
      name: Tensor(f'file: {name}', shape, lambda s=shape: np.zeros(s))
      for name, shape in param_shapes(model).items()
      if not name.startswith(without or ('nothing',))
  }
  return Weights(
      'kind', 'folder', tensors, model.encoder, model.passage_encoder
  ).check()


def assign(target, source, *args):
  return assignment.assign(param_shapes(target), source, *args)


def test_what_each_parameter_takes_by_default():
  one, two = model(), model(**own_passage_tower())
  assert assign(one, weights_of(one)) == {n: n for n in param_shapes(one)}
  assert assign(two, weights_of(two)) == {n: n for n in param_shapes(two)}
  # One tower starts both.
  assert assign(two, weights_of(one)) == {
      n: n.removeprefix('passage_') for n in param_shapes(two)
  }
  routed = assign(model(passage_projection=Projection(6)), weights_of(one))
  assert routed['passage_projection/kernel'] == 'projection/kernel'
  # A pretrained T5 has no projection, which starts fresh.
  sources = assign(one, weights_of(one, 'projection'))
  assert [n for n, s in sources.items() if s is None] == ['projection/kernel']
  # Into one tower only.
  sources = assign(two, weights_of(one), [('passage_.*', None)])
  fresh = {name for name, source in sources.items() if source is None}
  assert fresh == {n for n in param_shapes(two) if n.startswith('passage_')}


def test_a_deep_tower_into_a_shallow_one_by_chosen_layers():
  rules = [
      ('encoder/layers_0/(.*)', r'encoder/layers_1/\1'),
      ('encoder/layers_1/(.*)', r'encoder/layers_3/\1'),
  ]
  deep = weights_of(model(layers=4))
  with pytest.raises(UserError, match='no place for encoder/layers_0/.*DROP'):
    assign(model(), deep, rules)
  drop = ['encoder/layers_(0|2)/.*']
  sources = assign(model(), deep, rules, drop)
  assert sources['encoder/layers_0/mlp/wi_0/kernel'] == (
      'encoder/layers_1/mlp/wi_0/kernel'
  )
  assert sources['encoder/layers_1/mlp/wi_0/kernel'] == (
      'encoder/layers_3/mlp/wi_0/kernel'
  )
  assert sources['encoder/encoder_norm/scale'] == 'encoder/encoder_norm/scale'


def test_parameters_of_the_loss_are_taken_if_there_and_else_fresh():
  shapes = {**param_shapes(model()), 'loss/log_temperature': ()}
  source = weights_of(model())
  assert assignment.assign(shapes, source)['loss/log_temperature'] is None
  own = Tensor('file: t', (), lambda: np.float32(1))
  with_loss = Weights(
      *(source.kind, source.path, source.tensors, source.encoder),
      loss={'loss/log_temperature': own},
  )
  sources = assignment.assign(shapes, with_loss)
  assert sources['loss/log_temperature'] == 'loss/log_temperature'
  rules, drop = [('loss/.*', None)], ['loss/.*']
  fresh = assignment.assign(shapes, with_loss, rules, drop)
  assert fresh['loss/log_temperature'] is None
  # Another loss has no use for it, and says nothing of it.
  assert assign(model(), with_loss) == assign(model(), source)


@pytest.mark.parametrize(
    'rules, drop, message',
    [
        ([('encodr/.*', None)], (), "'encodr/.*' matches no parameter"),
        ([('(', None)], (), 'is not a regular expression'),
        ([('encoder/(.*)', r'encoder/\2')], (), 'is wrong: invalid group'),
        # The first rule that matches counts.
        ([('projection/.*', None), ('proj.*', 'projection/kernel')], (),
         'no place for projection/kernel'),
        ([('projection/kernel', 'head/kernel')], (), 'head/kernel, which is'),
        ((), ['decoder/.*'], "'decoder/.*' matches no tensor of folder"),
        ((), 'encoder/.*', 'expected several'),
        ((), ['projection/.*'], 'DROP leaves out projection/kernel'),
    ],
)
def test_each_rule_matches_or_is_an_error(rules, drop, message):
  with pytest.raises(UserError, match=message):
    assign(model(), weights_of(model()), rules, drop)


def test_other_layers_towers_and_sizes():
  with pytest.raises(UserError, match='nothing for encoder/layers_2/.*RULES'):
    assign(model(layers=3), weights_of(model()))
  with pytest.raises(UserError, match='no place for encoder/layers_1/.*DROP'):
    assign(model(layers=1), weights_of(model()))
  two = weights_of(model(**own_passage_tower()))
  with pytest.raises(UserError, match="DROP=.*'passage_"):
    assign(model(), two)
  dropped = assign(model(), two, (), ['passage_.*'])
  assert set(dropped.values()) == set(param_shapes(model()))
  wider = DualEncoder(TokenEmbedder(64, 8), encoder(), Projection(6))
  shapes = r'\(32, 8\); token_.* has \(64, 8\).*VOCAB_SIZE'
  with pytest.raises(UserError, match=shapes):
    assign(wider, weights_of(model()))


def test_all_that_has_no_place_is_proposed_to_be_dropped():
  names = [
      'encoder/layers_2/mlp/wo/kernel', 'encoder/layers_11/mlp/wo/kernel',
      'encoder/layers_2/mlp/wi/kernel', 'passage_projection/kernel',
  ]
  assert assignment._propose_drops(names) == (
      "'encoder/layers_(2|11)/.*', 'passage_projection/.*'"
  )
