"""Another vocabulary than the checkpoint's is refused, and says in what."""

import dataclasses

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2
import small_vocabulary
from tiny_weights import tensor

from dualenc_jax.checkpoints.vocabulary import check_same_vocabulary
from dualenc_jax.checkpoints.weights import Usage, Weights
from dualenc_jax.data.text.tokenizer import Vocabulary
from dualenc_jax.models import T5Encoder
from dualenc_jax.utils.errors import UserError


@pytest.fixture(scope='module')
def file(tmp_path_factory):
  return small_vocabulary.write(tmp_path_factory.mktemp('own') / 'own.model')


@pytest.fixture
def changed(file, tmp_path):
  """Writes the vocabulary after a change."""

  def write(change):
    proto = read(file)
    change(proto)
    (tmp_path / 'other.model').write_bytes(proto.SerializeToString())
    return Vocabulary(str(tmp_path / 'other.model'))

  return write


def read(file):
  return sentencepiece_model_pb2.ModelProto.FromString(file.read_bytes())


def checkpoint(usage):
  embedding = np.zeros((small_vocabulary.SIZE + 28, 8), np.float32)
  tensors = {'token_embedder/embedding': tensor('a test', embedding)}
  return Weights('test', 'there', tensors, T5Encoder(1, 2, 4, 8), usage=usage)


def swap(proto):
  a, b = proto.pieces[100], proto.pieces[200]
  a.piece, b.piece = b.piece, a.piece


def other_score(proto):
  proto.pieces[50].score -= 1


def other_type(proto):
  proto.pieces[60].type = 3


def other_spaces(proto):
  proto.normalizer_spec.remove_extra_whitespaces = False


@pytest.mark.parametrize(
    'change, message',
    [
        (swap, 'pieces differ'), (other_score, 'pieces differ'),
        (other_type, 'pieces differ'),
        (other_spaces, 'remove_extra_whitespaces differs'),
        (lambda proto: proto.pieces.add(piece='one more', score=-20),
         'pieces differ'),
    ],
)
def test_another_vocabulary(file, changed, change, message):
  with pytest.raises(UserError, match=f'another vocabulary .*{message}') as e:
    check_same_vocabulary(checkpoint(Usage(file)), changed(change))
  for word in ('there (test)', 'other.model', f'its own vocabulary, {file}'):
    assert word in str(e.value)
  assert '\n' not in str(e.value) and len(str(e.value)) < 600


def without_provenance(proto):
  """Changes what does not change the ids of any text."""
  proto.trainer_spec.input.append('texts.txt')
  proto.normalizer_spec.name = 'user_defined'
  del proto.pieces[-1:]


def test_the_same_vocabulary(file, changed):
  weights = checkpoint(Usage(file))
  check_same_vocabulary(weights, Vocabulary(str(file)))
  check_same_vocabulary(weights, changed(without_provenance))
  check_same_vocabulary(checkpoint(Usage()), changed(other_score))


def test_a_tokenizer_json_has_pieces_alone(file, changed):
  pieces = [piece.piece for piece in read(file).pieces]
  weights = checkpoint(Usage(pieces=[*pieces, '<extra_id_0>']))
  check_same_vocabulary(weights, changed(other_score))
  with pytest.raises(UserError, match='pieces differ. Give its own voc'):
    check_same_vocabulary(weights, changed(swap))
  small = {n: t.reshaped(1, -1) for n, t in weights.tensors.items()}
  weights = dataclasses.replace(weights, tensors=small)
  with pytest.raises(UserError, match='has 1 token embeddings .* 300 pieces'):
    check_same_vocabulary(weights, Vocabulary(str(file)))
