// The bytes on the wire, the residuals and the outputs that golden/vectors.txt holds, made by golden/make.py from the
// NumPy model without this library. Where they change, ranks of different versions no longer understand each other.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "support.hpp"
#include "wire/header.hpp"

namespace echo_comm::core {
namespace {

// One block of the file: the words of its first line, and the bytes of the lines below by their name.
struct Vector {
  std::string title;
  std::map<std::string, std::string> words;
  std::map<std::string, Bytes> bytes;
};

void append_hex(const std::string& hex, Bytes& bytes) {
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
}

std::vector<Vector> read_vectors() {
  std::ifstream file(ECHO_GOLDEN_VECTORS);
  std::vector<Vector> vectors;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    std::string second;
    words >> first >> second;
    if (first == "case" || first == "header") {
      vectors.push_back({line, {{"kind", first}}, {}});
      std::istringstream pairs(line.substr(first.size()));
      for (std::string key, value; pairs >> key >> value;) vectors.back().words[key] = value;
    } else if (first != "#") {
      append_hex(second, vectors.back().bytes[first]);
    }
  }
  return vectors;
}

// ---- the inputs of make.py -----------------------------------------------------------------------------------------

constexpr int64_t kCount = 4 * kGroup + 37;
constexpr int kExponents[] = {0, -9, 0, 3, 5};
constexpr uint32_t kSeed = 20240229;

int integer_bits(Dtype dtype) { return dtype == Dtype::kFloat32 ? 24 : dtype == Dtype::kBfloat16 ? 8 : 11; }

std::vector<float> tensor(Dtype dtype, uint32_t call, float nan) {
  const int bits = integer_bits(dtype);
  uint32_t state = kSeed + call;
  std::vector<float> x(to_size(kCount));
  for (std::size_t i = 0; i < x.size(); ++i) {
    state = state * 1664525U + 1013904223U;
    const int group = static_cast<int>(i / kGroup);
    x[i] = std::ldexp(static_cast<float>(static_cast<int32_t>(state) >> (32 - bits)), kExponents[group] - bits + 2);
    if (group == 2) x[i] = 0;
  }
  x[3 * kGroup + 31] = nan;
  return x;
}

Cell cell_of(const Vector& vector) {
  static const std::map<std::string, Dtype> kTypes{
      {"fp32", Dtype::kFloat32}, {"bf16", Dtype::kBfloat16}, {"fp16", Dtype::kFloat16}};
  static const std::map<std::string, Store> kStoreNames{
      {"fp32", Store::kFp32}, {"int8", Store::kInt8}, {"int16", Store::kInt16}};
  const bool rotation = vector.words.at("rotation") == "1";
  return {kCount,
          0,
          {std::stoi(vector.words.at("bits")), rotation},
          kTypes.at(vector.words.at("dtype")),
          kStoreNames.at(vector.words.at("store"))};
}

// What is owed before the first call: nothing, or, on the exact path, 2^-16 of another tensor.
Bytes residual_before(const Cell& cell) {
  const int64_t groups = cell.layout().groups();
  Bytes residual(to_size(residual_bytes(groups, *cell.feedback)));
  if (!cell.format.exact()) return residual;
  std::vector<float> e = tensor(Dtype::kFloat32, 7, 0.0F);
  for (float& x : e) x *= 0x1p-16F;
  std::memcpy(residual.data(), e.data(), e.size() * sizeof(float));
  return residual;
}

class Golden : public PerCodec {
 protected:
  static void check(const Vector& vector) {
    const Cell cell = cell_of(vector);
    const Block block = cell.block();
    Bytes residual = residual_before(cell);
    const Residuals residuals{*cell.feedback, {residual.data(), block.range.size()}, {}, {}};
    const uint32_t calls = cell.format.exact() ? 1 : 2;
    Bytes payloads;
    Bytes payload(to_size(block.encoded_bytes()));
    for (uint32_t call = 0; call < calls; ++call) {
      const Bytes in = to_elements(tensor(cell.dtype, call, NAN), cell.dtype);
      const int64_t poisoned = codec().encode(block, in.data(), residuals, payload.data());
      EXPECT_EQ(poisoned, cell.format.exact() ? 0 : 1) << vector.title;
      payloads.insert(payloads.end(), payload.begin(), payload.end());
    }
    Bytes out(to_size(kCount * element_size(cell.dtype)));
    const std::byte* sums[] = {payload.data()};
    codec().decode(block, sums, residuals, {}, out.data());
    EXPECT_TRUE(payloads == vector.bytes.at("payload")) << vector.title;
    EXPECT_TRUE(residual == vector.bytes.at("residual")) << vector.title;
    if (vector.bytes.contains("output")) {
      EXPECT_TRUE(out == vector.bytes.at("output")) << vector.title;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Codecs, Golden, ::testing::ValuesIn(available_codecs()), codec_of);

TEST_P(Golden, PayloadsResidualsAndOutputs) {
  int cases = 0;
  for (const Vector& vector : read_vectors()) {
    if (vector.words.at("kind") != "case") continue;
    check(vector);
    ++cases;
  }
  EXPECT_EQ(cases, 38) << "in " << ECHO_GOLDEN_VECTORS;
}

TEST(GoldenHeader, HasTheDocumentedBytes) {
  MessageHeader header;
  header.dtype = Dtype::kBfloat16;
  header.bits = 5;
  header.sequence = 0x0102030405060708;
  header.count = 0x010203040506;
  header.row_length = 4096;
  header.flags =
      MessageHeader::kRotation | MessageHeader::kFeedback | MessageHeader::kBatchInvariant | MessageHeader::kFlush;
  header.shot = 2;
  header.rank = 513;
  Bytes message(sizeof header);
  write_header(message, header);
  const std::vector<Vector> vectors = read_vectors();
  ASSERT_FALSE(vectors.empty()) << "cannot read " << ECHO_GOLDEN_VECTORS;
  EXPECT_EQ(message, vectors.front().bytes.at("payload"));
}

}  // namespace
}  // namespace echo_comm::core
