//! Size and times of a file, between the store's type and the message's type.

use lockstep_fs::store::FileTimes;
use lockstep_repl::message::WireFileTimes;

pub(crate) const fn to_wire(facts: &FileTimes) -> WireFileTimes {
    WireFileTimes {
        size: facts.size,
        mtime: facts.mtime,
        ctime: facts.ctime,
        last_write: facts.last_write,
    }
}

pub(crate) const fn from_wire(times: &WireFileTimes) -> FileTimes {
    FileTimes {
        size: times.size,
        mtime: times.mtime,
        ctime: times.ctime,
        last_write: times.last_write,
    }
}
