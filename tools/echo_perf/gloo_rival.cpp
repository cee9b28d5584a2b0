#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>

#include <csignal>
#include <cstring>
#include <map>
#include <stdexcept>

#include "common/inputs.hpp"
#include "common/network.hpp"
#include "echo_perf/buffer.hpp"
#include "echo_perf/rival.hpp"

namespace echo_comm::tools {
namespace {

// Gloo's ranks set their keys in the same order, each before it reads those of the others: one exchange a key.
class ExchangeStore final : public gloo::rendezvous::Store {
 public:
  explicit ExchangeStore(const Exchange& exchange) : exchange_(exchange) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const std::vector<std::string> keys = exchange_.gather_text(key);
    const std::vector<std::string> values = exchange_.gather_text({data.begin(), data.end()});
    for (std::size_t rank = 0; rank < keys.size(); ++rank) values_[keys[rank]] = values[rank];
  }
  std::vector<char> get(const std::string& key) override {
    const std::string& value = values_.at(key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& /*keys*/) override {}
  void wait(const std::vector<std::string>& /*keys*/, const std::chrono::milliseconds& /*timeout*/) override {}

 private:
  const Exchange& exchange_;
  std::map<std::string, std::string> values_;
};

std::shared_ptr<gloo::transport::Device> device_on(const std::string& interface) {
  for (const Interface& one : interfaces()) {
    if (one.name != interface || !one.address) continue;
    gloo::transport::tcp::attr attributes;
    attributes.ai_family = one.address->family();
    attributes.ai_socktype = SOCK_STREAM;
    attributes.ai_protocol = 0;
    attributes.ai_addr = one.address->storage;
    attributes.ai_addrlen = static_cast<int>(one.address->length);
    return std::make_shared<gloo::transport::tcp::Device>(attributes);
  }
  throw std::runtime_error("baseline gloo: interface '" + interface + "' is not there or has no address");
}

class GlooRival final : public Rival {
 public:
  GlooRival(const Exchange& exchange, const RivalSettings& settings)
      : exchange_(exchange),
        context_(std::make_shared<gloo::rendezvous::Context>(exchange.rank(), exchange.size())),
        in_(settings.most_elements * sizeof(float)),
        out_(settings.most_elements * sizeof(float)) {
    std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to sockets whose other end may have died
    std::shared_ptr<gloo::transport::Device> device = device_on(settings.interface);
    context_->setTimeout(settings.timeout);
    ExchangeStore store(exchange_);
    context_->connectFullMesh(store, device);
  }

  void begin(std::uint64_t count, std::uint64_t /*exact_bytes*/) override {
    count_ = count;
    fill_random(in_.data(), count, ECHO_FLOAT32, exchange_.rank());
  }

  void prepare(Place place) override {
    options_ = std::make_unique<gloo::AllreduceOptions>(context_);
    options_->setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    void (*sum)(void*, const void*, const void*, std::size_t) = &gloo::sum<float>;
    options_->setReduceFunction(sum);
    if (place == kInPlace) {
      std::memcpy(out_.data(), in_.data(), count_ * sizeof(float));
    } else {
      options_->setInput(values(in_), count_);
    }
    options_->setOutput(values(out_), count_);
  }

  void call() override { gloo::allreduce(*options_); }

 private:
  static float* values(const Buffer& buffer) { return reinterpret_cast<float*>(buffer.data()); }

  const Exchange exchange_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  Buffer in_;
  Buffer out_;
  std::uint64_t count_ = 0;
  std::unique_ptr<gloo::AllreduceOptions> options_;
};

}  // namespace

std::string gloo_rival_missing() { return ""; }

std::unique_ptr<Rival> make_gloo_rival(const Exchange& exchange, const RivalSettings& settings) {
  return std::make_unique<GlooRival>(exchange, settings);
}

}  // namespace echo_comm::tools
