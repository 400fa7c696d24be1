// The detector over sockets: a thread with a connection to each other rank, beside whatever channel
// moves the data.
//
// A rank that ends well says so first, as its channel does. Any thread.
#pragma once
#include <memory>
#include <vector>

#include "transport/detector/detector.h"
#include "transport/tcp/mesh.h"

namespace tinyshard {

class Recorder;

class MeshDetector final : public Detector {
 public:
  // `look` is asked by the detector's thread what this rank does.
  MeshDetector(int rank, std::vector<tcp::Peer> peers, detector::Look look,
               std::shared_ptr<Recorder> recorder);
  ~MeshDetector() override;
  MeshDetector(const MeshDetector&) = delete;
  MeshDetector& operator=(const MeshDetector&) = delete;

  Sight sight(int rank) const override;
  std::optional<detector::Circle> circle() override;
  // Tells the others that this rank ends well. Once; the destructor does, and exit(0).
  void say_farewell();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tinyshard
