//! The witness: a process in the network namespace of its own server.

use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep_link::{Fingerprint, Identity};
use lockstep_testbed::{Process, logged_command};

use crate::network::{Host, Lan};
use crate::server::program;

const PORT: u16 = 7400;

/// See the head of this file. A drop ends the process.
pub struct Witness {
    _process: Process,
}

/// Makes a witness for two nodes with these fingerprints, and returns the section for the configuration of both.
pub fn make(root: &Path, [a, b]: &[Fingerprint; 2]) -> String {
    let (directory, address) = (directory(root), Host::Witness.ip());
    let made = Command::new(program(root))
        .args(["init", "--witness", "--name", "w", "--allow"])
        .args([&format!("A={a}"), "--allow", &format!("B={b}")])
        .args(["--listen", &format!("{address}:{PORT}"), "--dir"])
        .arg(&directory)
        .arg("--store")
        .arg(directory.join("store"))
        .output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
    let fingerprint = Identity::load(&directory).unwrap().fingerprint();
    format!(
        "\n[datastore.witness]\naddress = \"{address}:{PORT}\"\nfingerprint = \"{fingerprint}\"\n"
    )
}

fn directory(root: &Path) -> PathBuf {
    root.join("witness")
}

impl Witness {
    /// Starts the witness that was made.
    pub fn start(lan: &Lan, root: &Path) -> Self {
        let directory = directory(root);
        let program = program(root);
        let mut command = logged_command(program.to_str().unwrap(), &directory.join("log"));
        command.args(["witness", "--config"]);
        command.arg(directory.join("witness.toml"));
        let child = lan.of(Host::Witness).spawn(&mut command).unwrap();
        Self {
            _process: Process::of("witness", child),
        }
    }
}
