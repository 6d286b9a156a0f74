//! A process that keeps the mount of a node.

use std::fs;
use std::io;
use std::process::{Child, Command};

use crate::node::Node;
use crate::process::{Process, logged_command};
use crate::program::program;
use crate::wait::await_that;

/// See the head of this file. A drop ends the process, and with it the mounts whose node is gone.
pub struct Holder(Process);

impl Holder {
    /// Starts the process. Call it before the node starts.
    pub fn start(node: &Node) -> Self {
        Self::start_by(node, Command::spawn)
    }

    /// Starts the process in another way.
    pub fn start_by(node: &Node, spawn: impl FnOnce(&mut Command) -> io::Result<Child>) -> Self {
        let socket = node.control().with_extension("sock.hold");
        let mut command = logged_command(program(), &node.dir().join("hold.log"));
        command.args(["hold", "--config"]).arg(node.config());
        let process = Process::of("holder", spawn(&mut command).unwrap());
        await_that("the holder", || fs::exists(&socket).unwrap());
        Self(process)
    }

    /// Ends the process with the mount of a node that does not run, by the command.
    pub fn end(self, node: &Node) {
        let mut command = Command::new(program());
        let command = command.args(["hold", "--end", "--config"]);
        let ended = command.arg(node.config()).output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        self.0.await_success();
    }

    /// Ends the process with SIGTERM, as an administrator does.
    pub fn stop(self) {
        self.0.stop();
    }
}
