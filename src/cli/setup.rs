//! The commands that set a node up.

pub(super) mod adopt;
pub(super) mod create_store;
pub(super) mod import;
pub(super) mod init;
pub(super) mod init_ask_witness;
pub(super) mod init_witness;
pub(super) mod mount_directory;
pub(super) mod new_files;
pub(super) mod setting;
