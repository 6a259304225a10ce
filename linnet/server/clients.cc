#include "linnet/server/clients.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <tuple>

#include "linnet/base/hash.h"
#include "linnet/base/units.h"
#include "linnet/error.h"
#include "linnet/io/file.h"
#include "linnet/io/json.h"

namespace linnet::server {
namespace {

using nlohmann::ordered_json;

constexpr size_t kLongestKey = 4096, kLongestName = 64;
constexpr size_t kLargestFile = 16 << 20;
constexpr int64_t kMost = 1'000'000'000'000;  // of each quota

void CheckName(const std::string& name) {
  const auto plain = [](unsigned char c) {
    return c < 128 && (std::isalnum(c) || c == '_' || c == '-');
  };
  if (name.empty() || name.size() > kLongestName || !std::all_of(name.begin(), name.end(), plain)) {
    throw InputError("the client's name ", Quote(name), ": use 1 to ", kLongestName,
                     " letters, digits, '_' and '-'");
  }
}

ClientOptions ClientOf(const ordered_json& object) {
  const Fields fields(object, {"name", "key", "tokens_per_minute", "requests", "state_mb"}, "it");
  ClientOptions client;
  client.name = fields.Text("name", "");
  CheckName(client.name);
  client.key = CheckedKey(fields.Text("key", ""), "'key'");
  const auto whole = [&](const char* name) { return fields.Integer(name, 0, 1, kMost); };
  if (fields.Has("tokens_per_minute")) {
    client.tokens_per_minute = static_cast<double>(whole("tokens_per_minute"));
  }
  if (fields.Has("requests")) client.requests = static_cast<size_t>(whole("requests"));
  if (fields.Has("state_mb")) {
    client.state_bytes = 1e6 * fields.Number("state_mb", 0, 0, static_cast<double>(kMost));
  }
  return client;
}

}  // namespace

std::string CheckedKey(const std::string& text, const std::string& where) {
  const size_t begin = text.find_first_not_of(" \t\r\n"), end = text.find_last_not_of(" \t\r\n");
  if (begin == text.npos) throw InputError(where, ": contains no key");
  const std::string key = text.substr(begin, end - begin + 1);
  if (std::any_of(key.begin(), key.end(), [](unsigned char c) { return c <= 0x20 || c >= 0x7f; })) {
    throw InputError(where,
                     ": the key may have only letters, digits and other visible ASCII characters; "
                     "it contains a blank, a line break or another character");
  }
  if (key.size() > kLongestKey) {
    throw InputError(where, ": the key has ", key.size(), " characters; at most ", kLongestKey,
                     " are possible");
  }
  return key;
}

bool SameSecret(std::string_view a, std::string_view b) {
  unsigned char differ = a.size() != b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    differ |= static_cast<unsigned char>(a[i] ^ b[b.empty() ? 0 : i % b.size()]);
  }
  return differ == 0;
}

std::vector<ClientOptions> ReadClients(const std::string& path, const std::string& server_key) {
  std::string fault;
  const ordered_json file = ParseOrderedJson(ReadFile(path, kLargestFile), /*max_depth=*/8, fault);
  if (!fault.empty()) throw InputError(path, ": ", fault);
  std::vector<ClientOptions> clients;
  std::set<std::string> names, keys = {server_key};
  std::string where;
  try {
    const Fields fields(file, {"clients"}, "the file");
    const ordered_json& list = fields.Value("clients");
    if (!list.is_array() || list.empty()) throw InputError("'clients' is not a list of clients");
    for (const ordered_json& object : list) {
      where = StrCat("client ", clients.size() + 1, ": ");
      clients.push_back(ClientOf(object));
      const auto& [name, key] = std::tie(clients.back().name, clients.back().key);
      if (!names.insert(name).second) throw InputError("another client has the name '", name, "'");
      if (!keys.insert(key).second) {
        throw InputError("its key is also that of ",
                         key == server_key ? "the server" : "another client");
      }
    }
  } catch (const InputError& error) {
    throw InputError(path, ": ", where, error.what());
  }
  return clients;
}

Client::Client(ClientOptions options, Time now)
    : name_(options.name),
      options_(std::move(options)),
      left_(options_.tokens_per_minute),
      filled_(now) {}

uint64_t Client::id() const { return Hash(std::as_bytes(std::span(name_))) | 1; }

bool Client::HasKey(std::string_view key) const {
  const std::lock_guard lock(mutex_);
  return SameSecret(key, options_.key);
}

void Client::Set(ClientOptions options, Time now) {
  const std::lock_guard lock(mutex_);
  Refill(now);
  const double share = std::isinf(left_) ? 1 : left_ / options_.tokens_per_minute;
  options_ = std::move(options);
  const bool limited = !std::isinf(options_.tokens_per_minute);
  left_ = limited ? share * options_.tokens_per_minute : options_.tokens_per_minute;
  filled_ = now;
}

void Client::Refill(Time now) {
  if (std::isinf(options_.tokens_per_minute)) return;
  const double minutes = std::chrono::duration<double, std::ratio<60>>(now - filled_).count();
  filled_ = now;
  left_ = std::min(options_.tokens_per_minute, left_ + minutes * options_.tokens_per_minute);
}

void Client::Begin(Time now) {
  const std::lock_guard lock(mutex_);
  Refill(now);
  if (counts_.running >= options_.requests) {
    ++counts_.refused;
    throw Refusal{429, StrCat("the client '", name_, "' has ", options_.requests,
                              options_.requests == 1 ? " request" : " requests",
                              " already, as many as it may have at the same time")};
  }
  if (left_ < 1) {
    ++counts_.refused;
    constexpr double kMinute = 60;
    const double wait = std::ceil((1 - left_) / options_.tokens_per_minute * kMinute);
    throw Refusal{429,
                  StrCat("the client '", name_, "' has used its ",
                         static_cast<int64_t>(options_.tokens_per_minute),
                         " tokens a minute; try again in ", FormatSeconds(wait)),
                  static_cast<int>(std::min(wait, 1e9))};
  }
  ++counts_.requests;
  ++counts_.running;
}

void Client::End(size_t tokens, Time now) {
  const std::lock_guard lock(mutex_);
  Refill(now);
  left_ -= static_cast<double>(tokens);
  counts_.tokens += tokens;
  --counts_.running;
}

double Client::state_bytes() const {
  const std::lock_guard lock(mutex_);
  return options_.state_bytes;
}

Client::Counts Client::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Clients::Set(std::vector<ClientOptions> options) {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Client>> next;
  for (ClientOptions& one : options) {
    const auto known = std::find_if(clients_.begin(), clients_.end(),
                                    [&](const auto& client) { return client->name() == one.name; });
    if (known == clients_.end()) {
      next.push_back(std::make_shared<Client>(std::move(one)));
    } else {
      (*known)->Set(std::move(one));
      next.push_back(*known);
    }
  }
  clients_ = std::move(next);
}

std::shared_ptr<Client> Clients::Find(std::string_view key) const {
  std::shared_ptr<Client> found;
  for (const auto& client : All()) {  // all of them, so that the time does not tell which
    if (client->HasKey(key)) found = client;
  }
  return found;
}

std::vector<std::shared_ptr<Client>> Clients::All() const {
  const std::lock_guard lock(mutex_);
  return clients_;
}

void ClientStates::Open() {
  const std::lock_guard lock(mutex_);
  if (!store_) store_ = std::make_unique<StateStore>(options_);
}

StateStore& ClientStates::store() {
  try {
    Open();
  } catch (const std::exception& error) {
    if (options_.log) options_.log(error.what());
    throw Refusal{500, "the server cannot use its folder of states"};
  }
  return *store_;
}

std::string ClientStates::NewName() { return store().NewName(); }

std::shared_ptr<void> ClientStates::Reserve(const Model& model, size_t count,
                                            const std::optional<std::string>& name) {
  return store().Reserve(model, count, name);
}

void ClientStates::Keep(const std::string& model_name, std::shared_ptr<const Model> model,
                        const std::string& name, Snapshot snapshot,
                        std::function<void(const std::string& fault)> done) {
  store().Keep(model_name, std::move(model), name, std::move(snapshot), std::move(done));
}

std::shared_ptr<const Snapshot> ClientStates::Find(const std::string& model_name,
                                                   const Model& model, const std::string& name) {
  return store().Find(model_name, model, name);
}

}  // namespace linnet::server
