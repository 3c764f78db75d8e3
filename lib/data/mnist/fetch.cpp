#include "lib/data/mnist/fetch.h"

#include <curl/curl.h>
#include <dlfcn.h>

#include <array>
#include <exception>
#include <memory>
#include <utility>

#include "lib/error.h"

namespace duet::data {
namespace {

constexpr long kConnectTimeoutS = 15, kStallTimeoutS = 30, kMostRedirects = 5;

/// libcurl's functions, looked up when first needed: linking it would load twenty libraries into every process.
struct Curl {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  std::string failure;

  Curl() {
    void* library = nullptr;
    for (const char* const name : {"libcurl.so.4", "libcurl-gnutls.so.4"}) {
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) {
      const char* const reason = dlerror();
      failure = concat("libcurl cannot be loaded (package libcurl4): ", reason ? reason : "unknown reason");
      return;
    }
    find(library, "curl_global_init", global_init);
    find(library, "curl_easy_init", easy_init);
    find(library, "curl_easy_setopt", easy_setopt);
    find(library, "curl_easy_perform", easy_perform);
    find(library, "curl_easy_cleanup", easy_cleanup);
    find(library, "curl_easy_strerror", easy_strerror);
    if (failure.empty() && global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) failure = "libcurl does not start";
  }
  template <class Function>
  void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function) failure = concat("libcurl lacks ", name);
  }
};

const Curl& curl() {
  static const Curl loaded;
  return loaded;
}

/// One transfer, as the callbacks see it.
struct Transfer {
  std::vector<std::uint8_t> content;
  std::size_t most_bytes;
  const FetchProgress& progress;
  bool too_large = false;
  std::exception_ptr failure{};
};

std::size_t on_data(char* bytes, std::size_t size, std::size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::size_t total = size * count;
  if (transfer.content.size() + total > transfer.most_bytes) {
    transfer.too_large = true;
    return 0;
  }
  try {
    transfer.content.insert(transfer.content.end(), bytes, bytes + total);
  } catch (...) {
    transfer.failure = std::current_exception();
    return 0;
  }
  return total;
}

int on_progress(void* user, curl_off_t total, curl_off_t done, curl_off_t, curl_off_t) {
  auto& transfer = *static_cast<Transfer*>(user);
  try {
    if (transfer.progress) transfer.progress(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
    return 0;
  } catch (...) {
    transfer.failure = std::current_exception();
    return 1;
  }
}

}  // namespace

std::vector<std::uint8_t> fetch(const std::string& url, std::size_t most_bytes, const FetchProgress& progress) {
  const Curl& api = curl();
  require<DataError>(api.failure.empty(), url, ": ", api.failure);
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> handle(api.easy_init(), api.easy_cleanup);
  require<DataError>(handle != nullptr, url, ": libcurl gives no handle");
  Transfer transfer{.content = {}, .most_bytes = most_bytes, .progress = progress};
  std::array<char, CURL_ERROR_SIZE> reason{};
  CURL* const h = handle.get();
  api.easy_setopt(h, CURLOPT_URL, url.c_str());
  api.easy_setopt(h, CURLOPT_ERRORBUFFER, reason.data());
  api.easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https,file");
  api.easy_setopt(h, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  api.easy_setopt(h, CURLOPT_FOLLOWLOCATION, 1L);
  api.easy_setopt(h, CURLOPT_MAXREDIRS, kMostRedirects);
  api.easy_setopt(h, CURLOPT_FAILONERROR, 1L);
  api.easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
  api.easy_setopt(h, CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  api.easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
  api.easy_setopt(h, CURLOPT_LOW_SPEED_TIME, kStallTimeoutS);
  api.easy_setopt(h, CURLOPT_USERAGENT, "duet/" DUET_VERSION);
  api.easy_setopt(h, CURLOPT_WRITEFUNCTION, on_data);
  api.easy_setopt(h, CURLOPT_WRITEDATA, &transfer);
  api.easy_setopt(h, CURLOPT_NOPROGRESS, 0L);
  api.easy_setopt(h, CURLOPT_XFERINFOFUNCTION, on_progress);
  api.easy_setopt(h, CURLOPT_XFERINFODATA, &transfer);

  const CURLcode code = api.easy_perform(h);
  if (transfer.failure) std::rethrow_exception(transfer.failure);
  require<DataError>(!transfer.too_large, url, ": is larger than the ", most_bytes,
                     " bytes that were expected at most");
  require<DataError>(code == CURLE_OK, url, ": ", reason[0] ? reason.data() : api.easy_strerror(code));
  return std::move(transfer.content);
}

}  // namespace duet::data
