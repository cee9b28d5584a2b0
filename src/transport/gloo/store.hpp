// Where ranks put what the others need before they are connected: Gloo's file store in the job's folder, or its hash
// store in this process. Any thread.
#pragma once

#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/hash_store.h>

#include <mutex>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace echo_comm::core {

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;
  [[nodiscard]] virtual bool has(const std::string& key) = 0;
  // False when somebody else has set it.
  virtual bool put(const std::string& key, const std::vector<char>& value) = 0;
  // Of a key that is there.
  [[nodiscard]] virtual std::vector<char> value_of(const std::string& key) = 0;
};

// check() is what wait() of Gloo's stores is made of; wait() itself cannot watch anything else.
class JobStore final : public Store, private gloo::rendezvous::FileStore {
 public:
  explicit JobStore(const std::string& folder) : FileStore(folder) {}

  bool has(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return check({key});
  }
  bool put(const std::string& key, const std::vector<char>& value) override {
    const std::lock_guard lock(mutex_);
    try {
      FileStore::set(key, value);
      return true;
    } catch (const std::exception& error) {
      require(check({key}), ErrorCode::kSystem, "gloo: the job's folder cannot be written: ", error.what());
      return false;
    }
  }
  std::vector<char> value_of(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return FileStore::get(key);
  }

 private:
  std::mutex mutex_;
};

class ProcessStore final : public Store, private gloo::rendezvous::HashStore {
 public:
  bool has(const std::string& key) override {
    const std::lock_guard lock(m_);
    return map_.contains(key);
  }
  bool put(const std::string& key, const std::vector<char>& value) override {
    const std::lock_guard lock(m_);
    return map_.emplace(key, value).second;
  }
  std::vector<char> value_of(const std::string& key) override { return HashStore::get(key); }
};

}  // namespace echo_comm::core
