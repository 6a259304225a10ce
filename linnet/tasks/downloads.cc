#include "linnet/tasks/downloads.h"

namespace linnet {

const std::vector<DownloadableSet>& DownloadableSets() {
  static const std::vector<DownloadableSet> sets = {
      {
          .name = "an4",
          .description = "AN4: 1,078 spoken spellings, names and numbers with transcripts",
          .terms = "BSD-style; Carnegie Mellon University",
          .files = {{"an4_sphere.tar.gz", 0,
                     "a0525579493735d32b60fb6fa5975dd0eaacde087b0a4eeb7f13b7ef33077b12"}},
          .mirrors = {"https://dldata-public.s3.us-east-2.amazonaws.com/",
                      "http://www.speech.cs.cmu.edu/databases/an4/"},
          .next = "linnet train speech --preset small --data DIR --out runs/phones",
          .unpack = "an4/",
      },
      {
          .name = "cifar10",
          .description = "CIFAR-10: 60,000 color images of ten classes",
          .terms = "cite Krizhevsky 2009",
          .files = {{"cifar-10-binary.tar.gz", 170052171,
                     "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"}},
          .mirrors = {"https://www.cs.toronto.edu/~kriz/"},
          .next = "linnet train images --preset small --data DIR --out runs/cifar10",
      },
      {
          .name = "couplets",
          .description = "couplet-dataset: 770,000 Chinese couplets",
          .terms = "AGPL-3.0",
          .files = {{"couplet.tar.gz", 0, ""}},
          .mirrors = {"https://github.com/wb14123/couplet-dataset/releases/download/1.0/"},
          .next = "linnet train couplet --preset small --data DIR --out runs/couplet",
          .unpack = "couplet/",
          .contains = {"vocabs", 36516,
                       "0b12f938796c5d2621582eca527dfaa24f01e7b8e27a8aa8e1e5194e4ad27a19"},
      },
      {
          .name = "mnist",
          .description = "MNIST: 70,000 handwritten digits",
          .terms = "CC BY-SA 3.0; LeCun, Cortes and Burges",
          .files = {{"train-images-idx3-ubyte.gz", 9912422,
                     "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"},
                    {"train-labels-idx1-ubyte.gz", 28881,
                     "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"},
                    {"t10k-images-idx3-ubyte.gz", 1648877,
                     "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"},
                    {"t10k-labels-idx1-ubyte.gz", 4542,
                     "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"}},
          .mirrors = {"https://ossci-datasets.s3.amazonaws.com/mnist/",
                      "https://storage.googleapis.com/cvdf-datasets/mnist/"},
          .next = "linnet train images --preset small --data DIR --out runs/mnist",
      },
      {
          .name = "shakespeare",
          .description = "Tiny Shakespeare: 40,000 lines from his plays, for a language model",
          .terms = "public domain",
          .files = {{"input.txt", 1115394,
                     "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}},
          .mirrors = {"https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
                      "tinyshakespeare/"},
          .next = "linnet train text --preset base --data DIR/input.txt --out runs/shakespeare",
      },
  };
  return sets;
}

}  // namespace linnet
