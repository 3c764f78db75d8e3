#include "lib/io/file_format.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>
#include <string_view>

#include "lib/base/text.h"
#include "lib/error.h"

namespace duet {
namespace {

using namespace std::string_view_literals;

#define DUET_CONVERT(imports, tensors) \
  "convert it: python3 -c 'import sys, " imports " as s; s.save_file(" tensors ", sys.argv[2])' FILE NEW.safetensors"
constexpr const char* kFromTorch = DUET_CONVERT(
    "torch, safetensors.torch",
    "(lambda d: d.get(\"state_dict\", d))(torch.load(sys.argv[1], map_location=\"cpu\", weights_only=True))");
constexpr const char* kFromScript =
    DUET_CONVERT("torch, safetensors.torch", "torch.jit.load(sys.argv[1], \"cpu\").state_dict()");
constexpr const char* kFromArchive = DUET_CONVERT("numpy, safetensors.numpy", "dict(numpy.load(sys.argv[1]))");
constexpr const char* kFromArray = DUET_CONVERT("numpy, safetensors.numpy", "{\"NAME\": numpy.load(sys.argv[1])}");
constexpr const char* kFromExport =
    DUET_CONVERT("torch, safetensors.torch", "dict(torch.export.load(sys.argv[1]).state_dict)");
constexpr const char* kFromOnnx =
    DUET_CONVERT("onnx.numpy_helper, safetensors.numpy",
                 "{t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(sys.argv[1]).graph.initializer}");
#undef DUET_CONVERT
constexpr const char* kFromHdf5 = "read it by h5py or its framework, and write its tensors by safetensors.numpy";
constexpr const char* kDownload = "download the file again, from an address that gives the file itself";

struct FileFormat {
  std::string_view magic;
  const char* name;
  const char* fix = "";                     // may be empty
  FileContent reader = FileContent::other;  // tensors: the fix is for a reader of tensors only
};
constexpr FileContent kTensors = FileContent::tensors;

constexpr FileFormat kFormats[] = {
    {"version https://git-lfs"sv, "a Git LFS pointer", "fetch the file itself: git lfs pull"},
    {"<!doctype"sv, "an HTML page", kDownload},
    {"<html"sv, "an HTML page", kDownload},
    {"<?xml"sv, "an XML text", kDownload},
    {"\x93NUMPY"sv, "a NumPy array (.npy)", kFromArray, kTensors},
    {"\x89HDF\r\n"sv, "an HDF5 file", kFromHdf5, kTensors},
    {"GGUF"sv, "a GGUF file", "download the safetensors files of the model: its own tensors are quantized", kTensors},
    {"{"sv, "a JSON text", "if it's the index of a model, load the files that it names", kTensors},
    {"\x1f\x8b"sv, "gzip data", "unpack it: gunzip FILE"},
    {"BZh"sv, "bzip2 data", "unpack it: bunzip2 FILE"},
    {"\xfd\x37zXZ"sv, "xz data", "unpack it: unxz FILE"},
    {"7z\xbc\xaf\x27"sv, "a 7z archive", "unpack it: 7z x FILE"},
    {"\x28\xb5\x2f\xfd"sv, "zstd data", "unpack it: unzstd FILE"},
    {"\0\x05\x16\x07"sv, "metadata of macOS (AppleDouble)", "delete it: the file's own name doesn't begin with \"._\""},
    {"\0\0\x08\x01"sv, "an IDX file of labels"},
    {"\0\0\x08\x03"sv, "an IDX file of images"},
    {"\xff\xd8\xff"sv, "a JPEG image"},
    {"\x89PNG\r\n"sv, "a PNG image"},
    {"GIF8"sv, "a GIF image"},
    {"BM"sv, "a BMP image"},
    {"RIFF"sv, "a RIFF file, such as a WebP image"},
    {"II*\0"sv, "a TIFF image"},
    {"MM\0*"sv, "a TIFF image"},
    {"PAR1"sv, "a Parquet file"},
};
constexpr FileFormat kPickle{{}, "a Python pickle, such as a legacy file of torch.save", kFromTorch, kTensors},
    kOnnx{{}, "an ONNX model", kFromOnnx, kTensors}, kTar{{}, "a tar archive", "unpack it: tar -xf FILE"},
    kSafetensors{{}, "a safetensors file"};

/// ZIP archives by the end of the name of their first file.
constexpr FileFormat kArchives[] = {
    {"/data/0"sv, "a TorchScript file", kFromScript, kTensors},
    {"data.pkl"sv, "a PyTorch file (torch.save or TorchScript)", kFromTorch, kTensors},
    {".npy"sv, "a NumPy archive (.npz)", kFromArchive, kTensors},
    {"metadata.json"sv, "a Keras model (.keras)", kFromHdf5, kTensors},
    {"/data/weights/weight_0"sv, "a program of torch.export (.pt2)", kFromExport, kTensors},
    {"archive_format"sv, "a program of torch.export (.pt2)", kFromExport, kTensors},
    {"serialized_exported_program.json"sv, "a program of torch.export (.pt2)", kFromExport, kTensors},
    {""sv, "a ZIP archive", "unpack it: unzip FILE"},
};
constexpr std::size_t kScripts = 2;                  // the first of them may be TorchScript
constexpr std::size_t kNameLength = 26, kName = 30;  // in the header of a ZIP archive's file
constexpr std::size_t kTarMagic = 257, kShown = 40;

const FileFormat* find_format(std::string_view front, FileContent expected) {
  const auto byte = [&](std::size_t at) { return at < front.size() ? static_cast<unsigned char>(front[at]) : 0; };
  if (byte(8) == '{' && front.substr(4, 4) == "\0\0\0\0"sv)  // behind the header's length
    return expected == FileContent::tensors ? nullptr : &kSafetensors;
  if (front.starts_with("PK\3\4") && front.size() > kName) {
    const std::string_view name =
        front.substr(kName, static_cast<std::size_t>(byte(kNameLength) + 256 * byte(kNameLength + 1)));
    const FileFormat* const found =
        std::ranges::find_if(kArchives, [&](const FileFormat& one) { return name.ends_with(one.magic); });
    return expected == FileContent::script && found < kArchives + kScripts ? nullptr : found;
  }
  if (byte(0) == 0x80 && byte(1) >= 2 && byte(1) <= 5) return &kPickle;
  if (byte(0) == 8 && byte(1) > 2 && (byte(2) == 0x12 || byte(2) == 0x3a))
    return &kOnnx;  // its version, then a text or the graph
  if (front.size() > kTarMagic && front.substr(kTarMagic).starts_with("ustar")) return &kTar;
  std::string text(front.substr(std::min(front.find_first_not_of(" \t\r\n"), front.size())));
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* const found = std::ranges::find_if(kFormats, [&](const FileFormat& one) {
    return one.magic.starts_with('<') ? text.starts_with(one.magic) : front.starts_with(one.magic);
  });
  return found == std::end(kFormats) ? nullptr : found;
}

}  // namespace

std::string describe_format(std::span<const std::byte> front, FileContent expected) {
  const std::string_view text(reinterpret_cast<const char*>(front.data()), front.size());
  const FileFormat* const found = find_format(text, expected);
  const bool readable = std::ranges::all_of(text, [](unsigned char c) { return c >= ' ' || std::isspace(c) != 0; });
  if (found == nullptr && readable && text.size() > 3 && shown_bytes(text) > 0)
    return concat("a text that begins with \"", printable(text.substr(0, std::min(text.find('\n'), kShown))),
                  "\", perhaps a server's answer in place of the file");
  if (found == nullptr) return {};
  const bool has_fix = *found->fix != '\0' && (found->reader == FileContent::other || expected == found->reader);
  return concat(found->name, has_fix ? "; " : "", has_fix ? found->fix : "");
}

std::string describe_file(const std::string& path, FileContent expected) {
  std::array<char, kFormatFront> front{};
  std::ifstream file(path, std::ios::binary);
  file.read(front.data(), std::ssize(front));
  return describe_format(std::as_bytes(std::span(front).first(static_cast<std::size_t>(file.gcount()))), expected);
}

}  // namespace duet
