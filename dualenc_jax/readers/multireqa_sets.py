"""The sets of MultiReQA: their files, where to get them, published sizes."""

import dataclasses
from typing import NamedTuple

_MRQA = 'https://s3.us-east-2.amazonaws.com/mrqa/release/v2'
_CANDIDATES = (
    'https://github.com/google-research-datasets/MultiReQA/raw/master/data'
)


class Published(NamedTuple):
  """Sizes of the two files that a split is joined from, and of the join.

  `joined` counts questions with an answer in a candidate, of train their pairs
  with such candidates; None where no figure is known.
  """

  questions: int
  candidates: int
  joined: int | None
  mrqa_bytes: int
  candidate_bytes: int


@dataclasses.dataclass(frozen=True)
class QASet:
  """A set of MultiReQA.

  Attributes:
    name: MultiReQA's, of its folder and in front of its candidate ids.
    mrqa_name: name of MRQA's file, without its ending.
    train: None for a set that is only tested on.
    evaluation: the development set of MRQA, MultiReQA's test set.
    mrqa_url: URL of its evaluation file, where that is not with MRQA's others.
  """

  name: str
  mrqa_name: str
  train: Published | None
  evaluation: Published
  mrqa_url: str | None = None

  def published(self, split: str) -> Published:
    """Sizes of the files of 'train' or of any other split."""
    return self.train if split == 'train' and self.train else self.evaluation

  def files(self, split: str) -> list[tuple[list[str], str]]:
    """MRQA's file and MultiReQA's of a split: paths, and where to get it.

    Paths are below the task's folder, the preferred one first: MRQA's file is
    called as in its release, or as its download script calls it, MultiReQA's
    may be in a clone of it.
    """
    sizes = self.published(split)
    folder = 'train' if split == 'train' else 'dev'
    names = dict.fromkeys([self.mrqa_name, self.name])
    folders = [folder] if self.train else [folder, 'test']
    paths = [f'mrqa/{f}/{n}.jsonl.gz' for f in folders for n in names]
    url = self.mrqa_url or f'{_MRQA}/{folder}/{self.mrqa_name}.jsonl.gz'
    path = f'{folders[-1]}/{self.name}/candidates.json.gz'
    return [
        (paths, f'Get it at {url} ({sizes.mrqa_bytes:,} bytes,'
                f' {sizes.questions:,} questions).'),
        ([f'multireqa/{path}', f'MultiReQA/data/{path}'],
         f'Get it at {_CANDIDATES}/{path} ({sizes.candidate_bytes:,} bytes,'
         f' {sizes.candidates:,} sentences).'),
    ]


# Questions: MRQA's README, but 5,901 of HotpotQA's development set, which its
# mended file has (5,904 before). Candidates: lines of the files; for TextbookQA
# MultiReQA's README has 3,701, but the file repeats the contexts that several
# questions share. Joined: Guo et al. 2021 (MultiReQA).
SETS = {
    qa_set.name: qa_set
    for qa_set in (
        QASet(
            'NaturalQuestions', 'NaturalQuestionsShort',
            Published(104_071, 448_355, 106_521, 116_612_493, 5_794_887),
            # Here alone a sentence that stands in several contexts is a
            # candidate of one of them: of 12,836 contexts 7,157 have any.
            Published(12_836, 22_118, 4_131, 10_424_248, 329_600)),
        QASet(
            'SQuAD', 'SQuAD',
            Published(86_588, 95_659, 87_133, 27_621_835, 2_685_384),
            Published(10_507, 10_642, 10_485, 3_474_262, 318_262)),
        QASet(
            'TriviaQA', 'TriviaQA-web',
            Published(61_688, 1_893_674, 335_659, 356_784_923, 19_336_595),
            Published(7_785, 238_339, 7_776, 44_971_198, 2_413_807)),
        QASet(
            'SearchQA', 'SearchQA',
            Published(117_384, 3_163_801, 629_160, 641_332_495, 32_368_716),
            Published(16_980, 454_836, 16_476, 92_526_612, 4_623_243)),
        QASet(
            'HotpotQA', 'HotpotQA',
            Published(72_928, 508_879, 104_973, 107_394_872, 5_760_488),
            Published(5_901, 52_191, None, 10_029_807, 582_901)),
        QASet(
            'BioASQ', 'BioASQ', None,
            Published(1_504, 14_158, None, 2_666_134, 156_649),
            mrqa_url='http://participants-area.bioasq.org/MRQA2019/'),
        QASet(
            'RelationExtraction', 'RelationExtraction', None,
            Published(2_948, 3_301, None, 850_817, 73_019)),
        QASet(
            'TextbookQA', 'TextbookQA', None,
            Published(1_503, 71_147, None, 1_881_401, 704_602)),
        QASet(
            'DuoRC', 'DuoRC.ParaphraseRC', None,
            Published(1_501, 5_525, None, 1_197_881, 97_625)),
    )
}
