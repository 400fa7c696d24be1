// Stands in for NVML: three GPUs, of which the second one does not tell its temperature.
#define TOLD __attribute__((visibility("default")))

extern "C" {
TOLD int nvmlInit_v2() { return 0; }
TOLD int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}
TOLD int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int devices[3];
  *device = &devices[index];
  devices[index] = int(index);
  return 0;
}
TOLD int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* celsius) {
  const int index = *static_cast<int*>(device);
  if (sensor != 0 || index == 1) return 3;
  *celsius = 40 + unsigned(index);
  return 0;
}
}
