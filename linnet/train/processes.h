// The processes of a distributed training run. Each computes a part of every batch, and gradients
// are added up over all processes.
//
//   Processes processes = Processes::FromEnvironment();
//   Part part{processes.rank(), processes.size()};
//   ...                                    // loss of this part, gradients
//   processes.Sum(gradients);              // the same bits in every process
//
// A sum waits for all processes. If one of them has ended, or does not answer within kAnswerTime,
// RuntimeError is thrown.
#ifndef LINNET_TRAIN_PROCESSES_H_
#define LINNET_TRAIN_PROCESSES_H_

#include <torch/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace linnet::train {

class Processes {
 public:
  static constexpr std::chrono::minutes kJoinTime{30};
  // Long enough for an update, or a part of a validation, on the slowest process. A process that
  // ends needs no timeout: the others see its connections close.
  static constexpr std::chrono::minutes kAnswerTime{30};
  // For processes of one parent, which mostly fail together. The first process reports its error at
  // once, and the parent ends the others, which wait this long before they report theirs. A lost
  // connection is reported after twice this time, because the process that failed reports first.
  static constexpr std::chrono::seconds kParentsTime{2};

  // This process alone.
  Processes();
  ~Processes();
  Processes(Processes&&) noexcept;
  Processes& operator=(Processes&&) noexcept;

  // Joins the processes that torchrun or a job scheduler has started. Reads the environment
  // variables RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and, optionally, LOCAL_WORLD_SIZE. Without
  // WORLD_SIZE, returns this process alone. Throws InputError if a variable is malformed or missing
  // or if this libtorch has no Gloo.
  static Processes FromEnvironment();
  // Whether WORLD_SIZE is set.
  static bool Launched();

  // Joins `size` processes of this machine, which find each other through a file that does not
  // exist yet. Their parent ends them if one fails.
  static Processes OnThisMachine(int rank, int size, const std::string& file);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int local_size() const { return local_size_; }  // number of processes on this machine
  bool first() const { return rank_ == 0; }

  // Replaces each tensor by its sum over the processes. The tensors are on the CPU and have the
  // same type.
  void Sum(const std::vector<torch::Tensor>& tensors) const;
  // The same in the background. Wait() replaces the tensors; they must not change before. All
  // processes start their sums in the same order.
  class Sums {
   public:
    virtual ~Sums() = default;
    virtual void Wait() = 0;
  };
  std::unique_ptr<Sums> StartSum(std::vector<torch::Tensor> tensors) const;
  // Replaces each tensor by that of the process of rank 0.
  void Broadcast(const std::vector<torch::Tensor>& tensors) const;
  // Sends a dense tensor to another process, whose Receive() writes it to a tensor of the same type
  // and size. Both wait for each other.
  void Send(const torch::Tensor& tensor, int to) const;
  void Receive(const torch::Tensor& tensor, int from) const;
  // Waits until every process has called Wait().
  void Wait() const;

 private:
  struct Group;
  Processes(int rank, int size, int local_size, std::unique_ptr<Group> group);
  class Running;
  static std::vector<torch::Tensor> Joined(const std::vector<torch::Tensor>& tensors);
  static void Divide(const torch::Tensor& joined, const std::vector<torch::Tensor>& tensors);
  template <typename Collective>
  void Run(const std::vector<torch::Tensor>& tensors, const Collective& collective) const;
  // Returns call(); its exceptions become a RuntimeError that says that the others are lost.
  template <typename Call>
  auto Guarded(const Call& call) const;

  int rank_ = 0, size_ = 1, local_size_ = 1;
  std::unique_ptr<Group> group_;  // null if there is one process
};

}  // namespace linnet::train

#endif  // LINNET_TRAIN_PROCESSES_H_
