// GPUs as plans see them, for NULL devices (devices/null/null_device.h).
#pragma once
#include "devices/null/null_device.h"

namespace tinyshard::hip {

PlannedDevice planned_mi300x();
PlannedDevice planned_rx7900();  // an RX 7900 XTX

}  // namespace tinyshard::hip
