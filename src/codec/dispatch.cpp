#include "codec/dispatch.hpp"

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

}  // namespace echo_comm::core
