#include "codec/dispatch.hpp"

#include "base/env.hpp"
#include "base/error.hpp"
#include "codec/simd.hpp"

namespace echo_comm::core {

const std::vector<const Codec*>& available_codecs() {
  static const std::vector<const Codec*> codecs = [] {
    std::vector<const Codec*> list = vector_codecs();
    list.push_back(&reference_codec());
    for (const Codec* codec : emulated_codecs()) list.push_back(codec);
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

const Codec& existing_codec(std::string_view name, std::string_view what) {
  if (const Codec* codec = codec_named(name); codec != nullptr) return *codec;
  std::string names;
  for (const Codec* one : available_codecs()) names += text(names.empty() ? "" : ", ", one->name());
  fail(ErrorCode::kArgument, what, name, ": this processor can run ", names);
}

const Codec& active_codec() {
  static const Codec& active = existing_codec(Env::read().codec, "ECHO_CODEC=");
  return active;
}

}  // namespace echo_comm::core
