#include "linnet/train/processes.h"

#include <torch/utils.h>

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "linnet/error.h"

#if defined(USE_C10D_GLOO) && __has_include(<gloo/algorithm.h>)
#define LINNET_GLOO 1
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#endif

namespace linnet::train {
namespace {

// The value of an environment variable, or "".
std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

int Number(const char* name, int least, int most) {
  const std::string text = Variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < least ||
      value > most) {
    throw InputError("the environment variable ", name, " is '", text,
                     "'; it must be a number from ", least, " to ", most, ", as torchrun sets it");
  }
  return value;
}

// The sums of nothing, or of a single process.
struct NoSums : Processes::Sums {
  void Wait() override {}
};

// The first line of an error message of libtorch.
[[maybe_unused]] std::string FirstLine(const std::exception& error) {
  const std::string_view what = error.what();
  return std::string(what.substr(0, what.find('\n')));
}

}  // namespace

struct Processes::Group {
#ifdef LINNET_GLOO
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  bool here;  // all processes are on this machine and have one parent

  Group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, bool forks, bool loopback)
      : here(forks) {
    using Gloo = c10d::ProcessGroupGloo;
    const auto options = Gloo::Options::create();
    options->timeout = kAnswerTime;
    options->threads = 1;
    const std::string interface = Variable("GLOO_SOCKET_IFNAME");
    options->devices.push_back(loopback            ? Gloo::createDeviceForHostname("127.0.0.1")
                               : interface.empty() ? Gloo::createDefaultDevice()
                                                   : Gloo::createDeviceForInterface(interface));
    gloo = c10::make_intrusive<Gloo>(store, rank, size, options);
  }
#endif
};

Processes::Processes() = default;
Processes::~Processes() = default;
Processes::Processes(Processes&&) noexcept = default;
Processes& Processes::operator=(Processes&&) noexcept = default;
Processes::Processes(int rank, int size, int local_size, std::unique_ptr<Group> group)
    : rank_(rank), size_(size), local_size_(local_size), group_(std::move(group)) {}

bool Processes::Launched() { return !Variable("WORLD_SIZE").empty(); }

#ifdef LINNET_GLOO

Processes Processes::FromEnvironment() {
  if (!Launched()) return Processes();
  const int size = Number("WORLD_SIZE", 1, 1 << 20), rank = Number("RANK", 0, size - 1);
  const int local = Variable("LOCAL_WORLD_SIZE").empty() ? 1 : Number("LOCAL_WORLD_SIZE", 1, size);
  if (size == 1) return Processes();
  const std::string address = Variable("MASTER_ADDR");
  if (address.empty()) throw InputError("WORLD_SIZE is set, but MASTER_ADDR is not");
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(Number("MASTER_PORT", 1, 65535));
  // With this variable, torchrun itself serves the store.
  options.isServer = rank == 0 && Variable("TORCHELASTIC_USE_AGENT_STORE") != "True";
  options.numWorkers = size;
  options.timeout = kJoinTime;
  try {
    const auto store = c10::make_intrusive<c10d::TCPStore>(address, options);
    const bool loopback = address == "127.0.0.1" || address == "localhost";
    return {rank, size, local, std::make_unique<Group>(store, rank, size, false, loopback)};
  } catch (const std::exception& error) {
    throw RuntimeError("process ", rank, " of ", size, " cannot join the others at ", address, ":",
                       options.port, " (", FirstLine(error), ")");
  }
}

Processes Processes::OnThisMachine(int rank, int size, const std::string& file) {
  if (size == 1) return Processes();
  try {
    const auto store = c10::make_intrusive<c10d::FileStore>(file, size);
    store->setTimeout(kJoinTime);
    return {rank, size, size, std::make_unique<Group>(store, rank, size, true, true)};
  } catch (const std::exception& error) {
    throw RuntimeError("process ", rank, " of ", size, " cannot join the others (",
                       FirstLine(error), ")");
  }
}

template <typename Call>
auto Processes::Guarded(const Call& call) const {
  try {
    return call();
  } catch (const std::exception& error) {
    if (group_->here) std::this_thread::sleep_for(2 * kParentsTime);
    throw RuntimeError("process ", rank_, " of ", size_, " lost the others: one of them has ended ",
                       "or does not answer (", FirstLine(error), ")");
  }
}

void Processes::Send(const torch::Tensor& tensor, int to) const {
  std::vector<torch::Tensor> tensors = {tensor};
  Guarded([&] { return group_->gloo->send(tensors, to, /*tag=*/0)->wait(); });
}

void Processes::Receive(const torch::Tensor& tensor, int from) const {
  std::vector<torch::Tensor> tensors = {tensor};
  Guarded([&] { return group_->gloo->recv(tensors, from, /*tag=*/0)->wait(); });
}

// The tensors as one vector.
std::vector<torch::Tensor> Processes::Joined(const std::vector<torch::Tensor>& tensors) {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}));
  return {torch::cat(parts)};
}

// Copies the parts of the vector to the tensors.
void Processes::Divide(const torch::Tensor& joined, const std::vector<torch::Tensor>& tensors) {
  torch::NoGradGuard no_grad;
  int64_t from = 0;
  for (const torch::Tensor& tensor : tensors) {
    tensor.copy_(joined.narrow(0, from, tensor.numel()).view(tensor.sizes()));
    from += tensor.numel();
  }
}

template <typename Collective>
void Processes::Run(const std::vector<torch::Tensor>& tensors, const Collective& collective) const {
  if (group_ == nullptr || tensors.empty()) return;
  std::vector<torch::Tensor> joined = Joined(tensors);
  Guarded([&] { return collective(*group_->gloo, joined)->wait(); });
  Divide(joined[0], tensors);
}

class Processes::Running : public Sums {
 public:
  Running(const Processes& processes, std::vector<torch::Tensor> tensors)
      : processes_(processes), tensors_(std::move(tensors)), joined_(Joined(tensors_)) {
    work_ = processes_.Guarded([&] { return processes_.group_->gloo->allreduce(joined_); });
  }
  void Wait() override {
    processes_.Guarded([&] { return work_->wait(); });
    Divide(joined_[0], tensors_);
  }

 private:
  const Processes& processes_;
  std::vector<torch::Tensor> tensors_, joined_;
  c10::intrusive_ptr<c10d::Work> work_;
};

std::unique_ptr<Processes::Sums> Processes::StartSum(std::vector<torch::Tensor> tensors) const {
  if (group_ == nullptr || tensors.empty()) return std::make_unique<NoSums>();
  return std::make_unique<Running>(*this, std::move(tensors));
}

void Processes::Sum(const std::vector<torch::Tensor>& tensors) const {
  Run(tensors, [](c10d::ProcessGroupGloo& gloo, std::vector<torch::Tensor>& flat) {
    return gloo.allreduce(flat);
  });
}

void Processes::Broadcast(const std::vector<torch::Tensor>& tensors) const {
  Run(tensors, [](c10d::ProcessGroupGloo& gloo, std::vector<torch::Tensor>& flat) {
    return gloo.broadcast(flat);
  });
}

#else

Processes Processes::FromEnvironment() {
  if (!Launched() || Number("WORLD_SIZE", 1, 1 << 20) == 1) return Processes();
  return OnThisMachine(0, 2, "");  // throws
}

Processes Processes::OnThisMachine(int, int size, const std::string&) {
  if (size == 1) return Processes();
  throw InputError("this build cannot train with several processes: its libtorch has no Gloo");
}

void Processes::Sum(const std::vector<torch::Tensor>&) const {}
std::unique_ptr<Processes::Sums> Processes::StartSum(std::vector<torch::Tensor>) const {
  return std::make_unique<NoSums>();
}
void Processes::Broadcast(const std::vector<torch::Tensor>&) const {}
void Processes::Send(const torch::Tensor&, int) const {}
void Processes::Receive(const torch::Tensor&, int) const {}

#endif

void Processes::Wait() const { Sum({torch::zeros({1})}); }

}  // namespace linnet::train
