// Prints what the transports are and how connecting goes, for world_test.cpp to run in other
// environments.
#include <chrono>
#include <cstdio>

#include "core/base/error.h"
#include "transport/world.h"

int main() {
  using namespace tinyshard;
  for (const TransportInfo& transport : transports()) {
    std::printf("%s: %s, %s\n", transport.name.c_str(), transport.available ? "yes" : "no",
                transport.detail.c_str());
  }
  try {
    auto world = connect_world(2, {.timeout = std::chrono::seconds(20)});
    std::printf("connected: %d participants by %s\n", world->size(),
                std::string(world->transport()).c_str());
  } catch (const UserError& error) {
    std::printf("UserError: %s\n", error.what());
  }
}
