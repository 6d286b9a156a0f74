//! A process that keeps the mount of a node.

use std::fs;
use std::process::{Child, Command, Stdio};

use crate::nodes::{Node, await_that};
use crate::program::program;

/// See the head of this file. A drop ends the process, and with it the mounts whose node is gone.
pub struct Holder(Child);

impl Holder {
    /// Starts the process. Call it before the node starts.
    pub fn start(node: &Node) -> Self {
        let socket = node.control().with_extension("sock.hold");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", program(), "hold", "--config"])
            .arg(node.config())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let holder = Self(command.spawn().unwrap());
        await_that("the holder", || fs::exists(&socket).unwrap());
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}
