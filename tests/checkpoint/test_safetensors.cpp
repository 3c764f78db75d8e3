#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lib/error.h"
#include "lib/io/file_format.h"
#include "lib/io/safetensors.h"
#include "tests/support/catch2.h"
#include "tests/support/scratch.h"

using duet::Checksum;
using duet::concat;
using duet::DataError;
using duet::NamedTensors;
using namespace duet_test;

namespace {

NamedTensors sample() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  return {
      {"fc.weight", duet::from_values<float>({2, 3}, {1, -2, 3.5f, kNan, 0, -0.0f})},
      {"fc.bias", duet::from_values<float>({3}, {1e-40f, 7, 8})},
      {"running", duet::from_values<double>({1}, {1.0 / 3})},
      {"count", duet::from_values<std::int64_t>({}, {std::int64_t{1} << 40})},
      {"small", duet::from_values<std::int32_t>({1, 2}, {-1, 2})},
      {"bytes", duet::from_values<std::uint8_t>({3}, {0, 127, 255})},
      {"half", duet::from_values<duet::Float16>({3}, {duet::Float16(1), duet::Float16(1e-7f), duet::Float16(kNan)})},
      {"brain", duet::from_values<duet::BFloat16>({1}, {duet::BFloat16(-3)})},
      {"nothing", duet::empty({0, 4})}};
}

bool same_bits(const duet::Tensor& a, const duet::Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

/// A file of the format with this header and that many bytes of zeros.
std::string file_of(const std::string& header, std::size_t buffer_bytes) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + std::string(buffer_bytes, '\0');
}

std::string entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return '"' + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + '}';
}

/// The file as another program writes the same content: keys in reverse order, metadata last, other tensors first in
/// the buffer, other padding.
std::string saved_again(const std::string& bytes) {
  using json = nlohmann::ordered_json;
  std::size_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const json header = json::parse(bytes.substr(8, header_bytes));
  const std::string buffer = bytes.substr(8 + header_bytes);
  std::vector<std::string> keys;
  for (const auto& item : header.items())
    if (item.key() != "__metadata__") keys.insert(keys.begin(), item.key());
  json other;
  std::string data;
  for (const std::string& key : keys) {
    const json& entry = header[key];
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    other[key]["shape"] = entry["shape"];
    other[key]["data_offsets"] = {data.size(), data.size() + end - begin};
    other[key]["dtype"] = entry["dtype"];
    data += buffer.substr(begin, end - begin);
  }
  for (auto item = header["__metadata__"].rbegin(); item != header["__metadata__"].rend(); ++item)
    other["__metadata__"][item.key()] = *item;
  const std::string text = other.dump(-1, ' ', true) + std::string(5, ' ');  // escapes what is not ASCII
  std::string file(reinterpret_cast<const char*>(&header_bytes), 8);
  header_bytes = text.size();
  std::memcpy(file.data(), &header_bytes, 8);
  return file + text + data;
}

/// What save_tensors wrote of {"x": [1, 2], "n": 7} and epoch 3 while its checksum covered the header's text.
std::string old_file() {
  const std::string header =
      R"({"__metadata__":{"epoch":"3","duet.sha256":"f3ca5714f5b3ac3b7784e0c2567b112e676bd9737f9100111639f98867d9248f"},)"
      R"("n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}       )";
  const float x[] = {1, 2};
  const std::int64_t n = 7;
  return file_of(header, 0) + std::string(reinterpret_cast<const char*>(&n), sizeof n) +
         std::string(reinterpret_cast<const char*>(x), sizeof x);
}

}  // namespace

TEST_CASE("tensors come back with the same bits, names, shapes and metadata") {
  const Scratch scratch;
  const std::string path = scratch.path("a.safetensors");
  const duet::Metadata metadata = {{"epoch", "3"}, {"quote \" and \\", "line\nend, ü"}};
  duet::save_tensors(path, sample(), metadata);
  CHECK(scratch.names() == std::vector<std::string>{"a.safetensors"});
  const duet::TensorFile file = duet::load_tensors(path, Checksum::required);
  CHECK(file.metadata == metadata);
  REQUIRE(file.tensors.size() == sample().size());
  for (const auto& [name, tensor] : sample()) {
    INFO(name);
    bool found = false;
    for (const auto& [other_name, other] : file.tensors)
      found = found || (other_name == name && same_bits(tensor, other));
    CHECK(found);
  }
}

TEST_CASE("tensors lie in the order of the format's own writer, aligned") {
  const Scratch scratch;
  const std::string path = scratch.path("a.safetensors");
  duet::save_tensors(path, sample());
  std::vector<std::string> names;
  for (const auto& named : duet::load_tensors(path).tensors) names.push_back(named.name);
  CHECK(names == std::vector<std::string>{"count", "running", "fc.bias", "fc.weight", "nothing", "small", "brain",
                                          "half", "bytes"});
  const std::string bytes = read_text(path);
  CHECK(static_cast<unsigned char>(bytes[0]) % 8 == 0);
}

TEST_CASE("two saves of the same tensors are the same file") {
  const Scratch scratch;
  duet::save_tensors(scratch.path("a"), sample(), {{"k", "v"}});
  duet::save_tensors(scratch.path("b"), sample(), {{"k", "v"}});
  CHECK(read_text(scratch.path("a")) == read_text(scratch.path("b")));
}

TEST_CASE("save refuses what the format cannot hold, and leaves nothing") {
  const Scratch scratch;
  const auto x = duet::zeros({1});
  CHECK_THROWS_AS(duet::save_tensors(scratch.path("a"), {{"x", x}, {"x", x}}), DataError);
  CHECK_THROWS_AS(duet::save_tensors(scratch.path("a"), {{"__metadata__", x}}), DataError);
  CHECK_THROWS_AS(duet::save_tensors(scratch.path("a"), {{"x", duet::Tensor()}}), DataError);
  CHECK_THROWS_AS(duet::save_tensors(scratch.path("a"), {{"\xff", x}}), DataError);
  CHECK(scratch.names().empty());
}

TEST_CASE("a header that breaks a rule is refused, by name") {
  struct Case {
    std::string header;
    std::size_t bytes;
    std::string words;
  };
  const std::string good = entry("x", "[2]", "[0,8]");
  const std::vector<Case> cases = {
      {"", 0, "does not begin with '{'"},
      {" {" + good + "}", 8, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"{" + good + "}\n", 8, "header ends with byte 10"},
      {"{" + good, 8, "not valid JSON"},
      {"{" + good + ",}", 8, "not valid JSON"},
      {"{\"\xff\xfe\":1}", 0, "not valid JSON"},
      {"{" + good + "," + entry("x", "[2]", "[8,16]") + "}", 16, "key \"x\" twice"},
      {R"({"x":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, "key \"dtype\" twice"},
      {R"({"x":[[[[]]]]})", 0, "deeper than 4"},
      {R"({"x":1})", 0, "tensor \"x\" is a JSON number"},
      {R"({"x":{"dtype":"F32","shape":[2]}})", 8, "no field \"data_offsets\""},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"strides":[1]}})", 8, "unknown field \"strides\""},
      {"{" + entry("x", "[2]", "[0,2]", "F8_E4M3") + "}", 2, "dtype \"F8_E4M3\", expected F32"},
      {"{" + entry("x", "[2]", "[0,8]", "BF16") + "}", 8, "8 bytes by its data_offsets, expected 4"},
      {R"({"x":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", 8, "dtype 7"},
      {"{" + entry("x", "[-2]", "[0,8]") + "}", 8, "value -2"},
      {"{" + entry("x", "[2.0]", "[0,8]") + "}", 8, "value 2.0"},
      {"{" + entry("x", "2", "[0,8]") + "}", 8, "shape is a JSON number"},
      {"{" + entry("x", "[1,1,1,1,1,1,2]", "[0,8]") + "}", 8, "7 dimensions"},
      {"{" + entry("x", "[1099511627776,1099511627776,0]", "[0,0]") + "}", 0, "more than"},
      {"{" + entry("x", "[4294967296,4294967296]", "[0,0]") + "}", 0, "more than"},
      {"{" + entry("x", "[18446744073709551616]", "[0,0]") + "}", 0, "expected a whole number"},
      {"{" + entry("x", "[2]", "[0,8,9]") + "}", 8, "3 data_offsets"},
      {"{" + entry("x", "[2]", "[8,0]") + "}", 8, "end lies before"},
      {"{" + entry("x", "[3]", "[0,8]") + "}", 8, "8 bytes by its data_offsets, expected 12"},
      {"{" + entry("x", "[2]", "[4,12]") + "}", 12, "begins at byte 4, expected 0"},
      {"{" + good + "," + entry("y", "[2]", "[12,20]") + "}", 20, "begins at byte 12, expected 8"},
      {"{" + good + "," + entry("y", "[2]", "[4,12]") + "}", 12, "begins at byte 4, expected 8"},
      {"{" + good + "}", 7, "take 8 bytes, the file holds 7"},
      {"{" + good + "}", 9, "take 8 bytes, the file holds 9"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is a JSON array"},
      {R"({"__metadata__":{"a":1}})", 0, "\"a\" is a JSON number"},
      {R"({"__metadata__":{"duet.sha256":"12"}})", 0, "not a SHA-256"},
  };
  std::string many, names;
  for (int i = 0; i <= 100'000; ++i) {
    many += i > 0 ? ",1" : "1";
    names += concat(i > 0 ? "," : "", '"', i, "\":\"\"");
  }
  std::vector<Case> all = cases;
  all.push_back({R"({"x":{"shape":[)" + many + "]}}", 0, "\"x\" has more than 100000 values"});
  all.push_back({R"({"__metadata__":{)" + names + "}}", 0, "\"__metadata__\" has more than 100000 values"});
  const Scratch scratch;
  const std::string path = scratch.path("bad.safetensors");
  for (const Case& c : all) {
    INFO(c.header.substr(0, 200));
    write_text(path, file_of(c.header, c.bytes));
    CHECK_THROWS_WITH(duet::load_tensors(path), ContainsSubstring(c.words) && ContainsSubstring(path));
  }
  write_text(path, file_of("{" + good + "}   ", 8));
  CHECK(duet::load_tensors(path).tensors.size() == 1);
  CHECK_THROWS_WITH(duet::load_tensors(path, Checksum::required), ContainsSubstring("has no \"duet.sha256\""));
}

TEST_CASE("a file that is not there, no file, or too short is refused") {
  const Scratch scratch;
  const std::string path = scratch.path("a");
  CHECK_THROWS_WITH(duet::load_tensors(path), ContainsSubstring("No such file"));
  CHECK_THROWS_WITH(duet::load_tensors(scratch.folder()), ContainsSubstring("not a regular file"));
  CHECK_THROWS_WITH(duet::load_tensors("/dev/zero"), ContainsSubstring("not a regular file"));
  const std::string pipe = scratch.path("pipe");  // which nothing will ever write to
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(duet::load_tensors(pipe), ContainsSubstring("not a regular file"));
  write_text(path, "");
  CHECK_THROWS_WITH(duet::load_tensors(path), ContainsSubstring("holds 0 bytes"));
  write_text(path, std::string(8, '\xff'));
  CHECK_THROWS_WITH(duet::load_tensors(path), ContainsSubstring("header length is 18446744073709551615"));
  write_text(path, file_of("{", 0).replace(0, 8, std::string("\x01\xe1\xf5\x05\0\0\0\0", 8)));
  CHECK_THROWS_WITH(duet::load_tensors(path),
                    ContainsSubstring("header length is 100000001, expected at most 100000000"));
  write_text(path, "");
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);  // a hole, more than there is memory
  CHECK_THROWS_WITH(duet::load_tensors(path), ContainsSubstring("header does not begin with"));
}

TEST_CASE("a file of another format is named, with what to do") {
  using namespace std::string_literals;
  const auto zip = [](const std::string& name) {
    return "PK\3\4"s + std::string(22, '\0') + static_cast<char>(name.size()) + "\0\0\0"s + name + "content";
  };
  struct Case {
    std::string content;
    const char *format, *fix;
  };
  const Case cases[] = {
      {zip("net/data/0"), "a TorchScript file", "torch.jit.load(sys.argv[1]"},
      {zip("archive/data.pkl"), "a PyTorch file", "torch.load(sys.argv[1]"},
      {zip("x.npy"), "a NumPy archive (.npz)", "numpy.load(sys.argv[1])"},
      {zip("net/archive_format"), "torch.export (.pt2)", "torch.export.load(sys.argv[1])"},
      {zip("net/data/weights/weight_0"), "torch.export (.pt2)", "torch.export.load(sys.argv[1])"},
      {zip("photos/1.jpg"), "a ZIP archive", "unzip"},
      {zip("metadata.json"), "a Keras model (.keras)", "h5py"},
      {"PK\3\4"s, "", ""},
      {"\x80\2\x8a\x0al\xfc\x9c\x46\xf9 "s, "a Python pickle", "torch.load"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "a Git LFS pointer", "git lfs pull"},
      {"\r\n  <!DOCTYPE html><title>404</title>", "an HTML page", "download the file again"},
      {"<HTML>404", "an HTML page", "download the file again"},
      {"\x93NUMPY\1\0v\0{'descr'"s, "a NumPy array", "numpy.load"},
      {"\x1f\x8b\x08\0\0\0\0\0\0\3{"s, "gzip data", "gunzip"},
      {"\x89HDF\r\n\x1a\n\0\0"s, "an HDF5 file", "h5py"},
      {"GGUF\3\0\0\0\0\0\0\0"s, "a GGUF file", "quantized"},
      {"\x08\x07\x12\x07pytorch", "an ONNX model", "onnx.load"},
      {std::string(257, 'a') + "ustar", "a tar archive", "tar -xf"},
      {"{\"weight_map\": {}}", "a JSON text", "load the files that it names"},
      {"BZh91AY&SY"s, "bzip2 data", "bunzip2"},
      {"7z\xbc\xaf\x27\x1c\0\4"s, "a 7z archive", "7z x"},
      {"Entry not found"s, "a text that begins with \"Entry not found\"", "server's answer"},
      {"label,1x1,1x2\n5,0,0\n"s, "a text that begins with \"label,1x1,1x2\"", ""},
  };
  const Scratch scratch;
  const std::string path = scratch.path("a.safetensors");
  for (const Case& c : cases) {
    INFO(c.format);
    write_text(path, c.content);
    CHECK_THROWS_WITH(duet::load_tensors(path),
                      ContainsSubstring(path) && ContainsSubstring(c.format) && ContainsSubstring(c.fix));
  }
  duet::save_tensors(path, sample());
  CHECK(duet::describe_file(path, duet::FileContent::tensors).empty());
  CHECK(duet::describe_file(path) == "a safetensors file");
}

TEST_CASE("a header of several megabytes is written and read") {
  const Scratch scratch;
  NamedTensors many;
  for (int i = 0; i < 14000; ++i) many.push_back({"samples." + std::to_string(i) + ".features", duet::zeros({1})});
  const std::string path = scratch.path("many.safetensors");
  duet::save_tensors(path, many);
  CHECK(std::filesystem::file_size(path) > 1'100'000);
  CHECK(duet::load_tensors(path, Checksum::required).tensors.size() == many.size());
}

TEST_CASE("a file cut off anywhere is refused") {
  const Scratch scratch;
  NamedTensors tensors = sample();
  tensors.push_back({"large", duet::zeros({3000})});
  duet::save_tensors(scratch.path("whole"), tensors, {{"epoch", "3"}});
  const std::string whole = read_text(scratch.path("whole"));
  const std::size_t header_end = whole.size() - 12000;
  std::mt19937 random(1);
  std::vector<std::size_t> lengths;
  for (std::size_t length = 0; length <= header_end; ++length) lengths.push_back(length);
  for (int i = 0; i < 1000; ++i) lengths.push_back(header_end + random() % (whole.size() - header_end));
  // From long to short, so that the file is only ever cut.
  std::sort(lengths.rbegin(), lengths.rend());
  write_text(scratch.path("cut"), whole);
  std::size_t accepted = 0;
  for (const std::size_t length : lengths) {
    std::filesystem::resize_file(scratch.path("cut"), length);
    try {
      duet::load_tensors(scratch.path("cut"));
      ++accepted;
    } catch (const DataError&) {
    }
  }
  CHECK(accepted == 0);
}

TEST_CASE("a file with any bit flipped is refused") {
  const Scratch scratch;
  duet::save_tensors(scratch.path("whole"), sample(), {{"epoch", "3"}, {"best_acc1", "98.5"}});
  const std::string bytes = read_text(scratch.path("whole"));
  write_text(scratch.path("flipped"), bytes);
  std::fstream file(scratch.path("flipped"), std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&file](std::size_t at, char byte) {
    file.seekp(static_cast<std::streamoff>(at)).put(byte).flush();
  };
  std::size_t accepted = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    put(bit / 8, static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8));
    try {
      duet::load_tensors(scratch.path("flipped"), Checksum::required);
      ++accepted;
    } catch (const DataError&) {
    }
    put(bit / 8, bytes[bit / 8]);
  }
  CHECK(accepted == 0);
  CHECK_NOTHROW(duet::load_tensors(scratch.path("flipped"), Checksum::required));
}

TEST_CASE("a file that another program has loaded and saved again loads again") {
  const Scratch scratch;
  duet::save_tensors(scratch.path("own"), sample(), {{"epoch", "3"}, {"quote", "\"\n\u00fc"}});
  const std::string bytes = read_text(scratch.path("own"));
  write_text(scratch.path("again"), saved_again(bytes));
  CHECK(read_text(scratch.path("again")) != bytes);
  const duet::TensorFile file = duet::load_tensors(scratch.path("again"), Checksum::required);
  CHECK(file.metadata == duet::Metadata{{"epoch", "3"}, {"quote", "\"\n\u00fc"}});
  REQUIRE(file.tensors.size() == sample().size());
  for (const auto& saved : sample())
    CHECK(std::any_of(file.tensors.begin(), file.tensors.end(), [&](const auto& loaded) {
      return loaded.name == saved.name && same_bits(saved.tensor, loaded.tensor);
    }));
}

TEST_CASE("a file that was saved again with other names, shapes or metadata is refused") {
  const Scratch scratch;
  duet::save_tensors(scratch.path("own"), {{"a", duet::zeros({2, 3})}, {"b", duet::zeros({6})}}, {{"epoch", "3"}});
  const std::string again = saved_again(read_text(scratch.path("own")));
  write_text(scratch.path("again"), again);
  CHECK_NOTHROW(duet::load_tensors(scratch.path("again"), Checksum::required));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"a\"", "\"c\""}, {"[2,3]", "[3,2]"}, {"[6]", "[6,1]"}, {"\"F32\"", "\"I32\""}, {"\"3\"", "\"4\""}}) {
    CAPTURE(from, to);
    std::string header = again.substr(8);
    const std::size_t at = header.find(from);
    REQUIRE(at != std::string::npos);
    header.replace(at, from.size(), to);
    const std::size_t end = header.rfind('}') + 1;
    write_text(scratch.path("other"), file_of(header.substr(0, end), 0) + header.substr(header.size() - 48));
    CHECK_THROWS_WITH(duet::load_tensors(scratch.path("other")), ContainsSubstring("is damaged"));
  }
}

TEST_CASE("a file of an earlier version, whose checksum is of its bytes, loads") {
  const Scratch scratch;
  write_text(scratch.path("old"), old_file());
  const duet::TensorFile file = duet::load_tensors(scratch.path("old"), Checksum::required);
  CHECK(file.metadata == duet::Metadata{{"epoch", "3"}});
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].tensor.data<std::int64_t>()[0] == 7);
  CHECK(file.tensors[1].tensor.data<float>()[1] == 2);
  const std::string bytes = old_file();
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    write_text(scratch.path("flipped"), flipped);
    CAPTURE(bit);
    CHECK_THROWS_AS(duet::load_tensors(scratch.path("flipped"), Checksum::required), DataError);
  }
}
