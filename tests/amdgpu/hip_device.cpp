// HIP calls about devices, and the texts of errors.
#include <cstring>
#include <string>

#include "tests/amdgpu/hip.h"

using namespace amdgpu_emulator;

namespace {

struct ErrorText {
  int code;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {kSuccess, "hipSuccess", "no error"},
    {kInvalidValue, "hipErrorInvalidValue", "invalid argument"},
    {kOutOfMemory, "hipErrorOutOfMemory", "out of memory"},
    {kNoDevice, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {kInvalidDevice, "hipErrorInvalidDevice", "invalid device ordinal"},
    {kInvalidImage, "hipErrorInvalidImage", "device kernel image is invalid"},
    {kInvalidHandle, "hipErrorInvalidHandle", "invalid resource handle"},
    {kNotFound, "hipErrorNotFound", "named symbol not found"},
    {kNotReady, "hipErrorNotReady", "device not ready"},
    {kIllegalAddress, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {kPeerAlreadyEnabled, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {kHostAlreadyRegistered, "hipErrorHostMemoryAlreadyRegistered",
     "the memory is registered already"},
    {kHostNotRegistered, "hipErrorHostMemoryNotRegistered", "the memory was not registered"},
    {kLaunchFailure, "hipErrorLaunchFailure", "unspecified launch failure"},
    {kCaptureUnsupported, "hipErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "hipErrorStreamCaptureInvalidated", "the capture was invalidated"}};

const ErrorText& error_of(int code) {
  static constexpr ErrorText kUnknown = {-1, "hipErrorUnknown", "unknown error"};
  for (const ErrorText& error : kErrors) {
    if (error.code == code) {
      return error;
    }
  }
  return kUnknown;
}

bool exists(const Runtime& state, int device) { return device >= 0 && device < state.devices; }

int put_name(void* properties, std::size_t at, int device) {
  return guarded([&](Runtime& state) {
    if (!exists(state, device)) {
      return kInvalidDevice;
    }
    const std::string name = state.target + (state.gfx9() ? ":sramecc+:xnack-" : "");
    std::memcpy(static_cast<char*>(properties) + at, name.c_str(), name.size() + 1);
    return kSuccess;
  });
}

}  // namespace

AMDGPU_EMULATOR_EXPORT int hipInit(unsigned) {
  return guarded([](Runtime&) { return kSuccess; });
}
AMDGPU_EMULATOR_EXPORT int hipDriverGetVersion(int* version) {
  *version = 60342134;
  return kSuccess;
}
AMDGPU_EMULATOR_EXPORT int hipRuntimeGetVersion(int* version) {
  return hipDriverGetVersion(version);
}
AMDGPU_EMULATOR_EXPORT const char* hipGetErrorName(int error) { return error_of(error).name; }
AMDGPU_EMULATOR_EXPORT const char* hipGetErrorString(int error) { return error_of(error).text; }

AMDGPU_EMULATOR_EXPORT int hipGetDeviceCount(int* count) {
  return guarded([&](Runtime& state) {
    *count = state.devices;
    return state.devices > 0 ? kSuccess : kNoDevice;
  });
}

AMDGPU_EMULATOR_EXPORT int hipDeviceGet(int* device, int ordinal) {
  return guarded([&](Runtime& state) {
    *device = ordinal;
    return exists(state, ordinal) ? kSuccess : kInvalidDevice;
  });
}

AMDGPU_EMULATOR_EXPORT int hipDeviceGetName(char* name, int bytes, int device) {
  return guarded([&](Runtime& state) {
    std::snprintf(name, static_cast<std::size_t>(bytes), "emulated %s", state.target.c_str());
    return exists(state, device) ? kSuccess : kInvalidDevice;
  });
}

AMDGPU_EMULATOR_EXPORT int hipDeviceGetUuid(char* uuid, int device) {
  std::memset(uuid, 0, 16);
  std::snprintf(uuid, 16, "emulated-%d", device);
  return kSuccess;
}

AMDGPU_EMULATOR_EXPORT int hipDeviceGetAttribute(int* value, int which, int device) {
  return guarded([&](Runtime& state) {
    if (!exists(state, device)) {
      return kInvalidDevice;
    }
    const bool gfx9 = state.gfx9();
    switch (which) {
      case 23:  // the capability's major number
        *value = gfx9 ? 9 : 11;
        return kSuccess;
      case 61:  // and the minor one
        *value = state.target == "gfx942" ? 4 : 0;
        return kSuccess;
      case 63:  // compute units: few, as blocks run one after the other
        *value = 16;
        return kSuccess;
      case 56:  // threads of a block
        *value = 1024;
        return kSuccess;
      case 74:  // bytes of LDS of a block
        *value = 65536;
        return kSuccess;
      case 87:  // lanes of a wave
        *value = gfx9 ? 64 : 32;
        return kSuccess;
      default:
        return kInvalidValue;
    }
  });
}

AMDGPU_EMULATOR_EXPORT int hipDeviceTotalMem(std::size_t* bytes, int device) {
  return guarded([&](Runtime& state) {
    *bytes = state.memory->total();
    return exists(state, device) ? kSuccess : kInvalidDevice;
  });
}

AMDGPU_EMULATOR_EXPORT int hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return guarded([&](Runtime& state) {
    *can = exists(state, device) && exists(state, peer) && device != peer ? 1 : 0;
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipSetDevice(int device) {
  return guarded([&](Runtime& state) {
    if (!exists(state, device)) {
      return kInvalidDevice;
    }
    current_device() = device;
    return kSuccess;
  });
}

AMDGPU_EMULATOR_EXPORT int hipGetDevice(int* device) {
  *device = current_device();
  return kSuccess;
}

AMDGPU_EMULATOR_EXPORT int hipDeviceEnablePeerAccess(int peer, unsigned) {
  return guarded([&](Runtime& state) {
    if (!exists(state, peer) || peer == current_device()) {
      return kInvalidDevice;
    }
    if (state.memory->reaches(current_device(), peer)) {
      return kPeerAlreadyEnabled;
    }
    state.memory->let_reach(current_device(), peer);
    return kSuccess;
  });
}

// Only the name of the architecture is told; where it lies changed with version 6.
AMDGPU_EMULATOR_EXPORT int hipGetDevicePropertiesR0600(void* properties, int device) {
  return put_name(properties, 1160, device);
}
AMDGPU_EMULATOR_EXPORT int hipGetDeviceProperties(void* properties, int device) {
  return put_name(properties, 396, device);
}
