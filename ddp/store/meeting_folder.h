// A place on this host where the ranks of a job meet without an address.
#pragma once

#include <string>

namespace duet::ddp {

/// A folder for this user alone, in the folder for temporary files: duet-UID, with `suffix`. Throws CommError when it
/// cannot be made, or is there and another user's or open to others.
std::string private_folder(const std::string& suffix);

/// A folder that only this user can use, the same for all ranks of a job and new for each of its meetings. The
/// destructor removes it, with the store in it: by then all ranks have opened that, or will not come.
class MeetingFolder {
 public:
  /// `job` names the job on this host, `meeting` counts. Throws as private_folder().
  MeetingFolder(const std::string& job, int meeting);
  ~MeetingFolder();
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;
  std::string store() const { return folder_ + "/store"; }

 private:
  std::string folder_;
};

}  // namespace duet::ddp
