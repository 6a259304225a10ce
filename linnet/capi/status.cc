#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>

#include "linnet/capi/capi.h"
#include "linnet/version.h"

namespace linnet::capi {
namespace {

// The thread's last status and error. `message` points to `text`, or to a string constant if there
// is no error or no memory for `text`.
struct Last {
  int status = LINNET_OK;
  std::string text;
  const char* message = "";
};
thread_local Last last;

int Record(int status, const char* message) noexcept {
  last.status = status;
  try {
    last.text = message;
    last.message = last.text.c_str();
  } catch (...) {
    last.message = "out of memory";
  }
  return status;
}

}  // namespace

void Succeed() noexcept {
  last.status = LINNET_OK;
  last.message = "";
}

int Fail() noexcept {
  try {
    throw;
  } catch (const Cancelled&) {
    return Record(LINNET_CANCELLED, "canceled by the progress function");
  } catch (const InputError& error) {
    return Record(LINNET_ERROR_INPUT, error.what());
  } catch (const RuntimeError& error) {
    return Record(LINNET_ERROR_RUNTIME, error.what());
  } catch (const std::bad_alloc&) {
    return Record(LINNET_ERROR_MEMORY, "out of memory");
  } catch (const std::length_error&) {  // a vector larger than the address space
    return Record(LINNET_ERROR_MEMORY, "out of memory: an array is too large");
  } catch (const std::system_error& error) {
    return Record(LINNET_ERROR_RUNTIME, error.what());
  } catch (const std::exception& error) {
    return Record(LINNET_ERROR_INTERNAL, error.what());
  } catch (...) {
    return Record(LINNET_ERROR_INTERNAL, "an unknown exception");
  }
}

size_t Product(std::initializer_list<size_t> sizes) {
  size_t product = 1;
  for (const size_t size : sizes) {
    if (size != 0 && product > PTRDIFF_MAX / sizeof(double) / size) {
      throw InputError("an array of more than ", PTRDIFF_MAX / sizeof(double),
                       " elements; pass a smaller size");
    }
    product *= size;
  }
  return product;
}

void CheckSize(size_t size, size_t first, const char* name) {
  constexpr size_t kMost = 4096;
  if (size < first || size > kMost) {
    throw InputError(name, ": its size is ", size, " bytes, not ", first, " to ", kMost, "; call ",
                     name, "_init() first");
  }
}

void CheckUnknownFields(const void* options, size_t size, size_t known, const char* name) {
  const auto* bytes = static_cast<const unsigned char*>(options);
  for (size_t i = known; i < size; ++i) {
    if (bytes[i] != 0) {
      throw InputError(name, ": sets fields that linnet ", LINNET_VERSION,
                       " does not know; use the header of this version");
    }
  }
}

}  // namespace linnet::capi

extern "C" {

const char* linnet_version(void) { return LINNET_VERSION; }
int linnet_last_status(void) { return linnet::capi::last.status; }
const char* linnet_last_error(void) { return linnet::capi::last.message; }

}  // extern "C"
