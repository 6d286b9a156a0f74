//! The witness: a process in the network namespace of its own server.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use lockstep_link::Identity;

use crate::network::{Host, Lan};
use crate::server::program;

const PORT: u16 = 7400;

/// See the head of this file. A drop ends the process.
pub struct Witness(Child);

/// Makes a witness for two nodes with these fingerprints, and returns the section for the configuration of both.
pub fn make(root: &Path, [a, b]: &[String; 2]) -> String {
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
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.join("log"));
        let process = lan
            .of(Host::Witness)
            .command()
            .arg(program(root))
            .args(["witness", "--config"])
            .arg(directory.join("witness.toml"))
            .stderr(log.unwrap())
            .spawn();
        Self(process.unwrap())
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
