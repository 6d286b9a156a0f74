//! The start of the helper processes of a mount: this program with a hidden command.
//!
//! A helper keeps no directory, no terminal and no file of the node. The helper gets everything else through its standard input.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// This program with a hidden command, whose standard input is empty until the caller sets another one.
pub(crate) fn hidden_command(program: &Path, name: &str) -> Command {
    let mut command = Command::new(program);
    command
        .arg0("lockstep")
        .arg(name)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/");
    command
}
