//! The commands that other programs run, or that work beside them: NFS-Ganesha, keepalived, mount(8), and the kernel through helper processes.

pub(super) mod ganesha_config;
pub(super) mod ganesha_follow;
pub(super) mod guard;
pub(super) mod invalidate;
pub(super) mod keepalived_config;
pub(super) mod keepalived_watch;
pub(super) mod mount_helper;
pub(super) mod write_back;
