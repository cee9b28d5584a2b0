// Which codec runs. All are equal bit for bit, so the choice is each rank's own.
#pragma once

#include <string_view>
#include <vector>

#include "codec/codec.hpp"

namespace echo_comm::core {

// What this processor can run, best first; then the reference, then emulated vectors.
const std::vector<const Codec*>& available_codecs();

// By name, "" for the best; null when there is none of that name.
const Codec* codec_named(std::string_view name);

// By name; throws kArgument, "<what><name>: ..." and the names there are, when there is none.
const Codec& existing_codec(std::string_view name, std::string_view what);

// The one that ECHO_CODEC names, or the best; the same for the life of the process. Throws kArgument for an unknown name.
const Codec& active_codec();

}  // namespace echo_comm::core
