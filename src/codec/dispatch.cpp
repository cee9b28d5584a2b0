#include "codec/dispatch.hpp"

#include "base/env.hpp"
#include "base/error.hpp"
#include "codec/simd.hpp"

namespace echo_comm::core {

const std::vector<const Codec*>& available_codecs() {
  static const std::vector<const Codec*> codecs = [] {
    std::vector<const Codec*> list = vector_codecs();
    list.push_back(&reference_codec());
    return list;
  }();
  return codecs;
}

const Codec* codec_named(std::string_view name) {
  const std::vector<const Codec*>& codecs = available_codecs();
  if (name.empty()) return codecs.front();
  for (const Codec* codec : codecs) {
    if (name == codec->name()) return codec;
  }
  return nullptr;
}

const Codec& active_codec() {
  static const Codec& active = [&]() -> const Codec& {
    const std::string wanted = Env::read().codec;
    const Codec* codec = codec_named(wanted);
    if (codec == nullptr) {
      std::string names;
      for (const Codec* one : available_codecs()) names += text(names.empty() ? "" : ", ", one->name());
      fail(ErrorCode::kArgument, "ECHO_CODEC=", wanted, ": this processor can run ", names);
    }
    return *codec;
  }();
  return active;
}

}  // namespace echo_comm::core
