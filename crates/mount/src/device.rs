//! The kernel's side of a mount: the mount point, the FUSE device, the threads that read requests from the device, and the
//! processes that make calls on it for the node.

pub(crate) mod child_process;
pub(crate) mod connection_abort;
pub(crate) mod fuse_device;
pub(crate) mod init;
pub(crate) mod mount_point;
pub mod mount_table;
pub(crate) mod reader_start;
pub(crate) mod reader_threads;
pub(crate) mod request_queue;
pub(crate) mod session_end;
