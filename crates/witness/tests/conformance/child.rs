//! A process that ends with its test, also if the test fails.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

/// A running process. A drop kills it.
pub struct Process(Child);

impl Process {
    /// Starts a command. The kernel kills the process if the thread of this test ends first.
    pub fn start(command: &Command) -> Self {
        let mut bound = Command::new("setpriv");
        bound
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            bound.env(name, value.unwrap_or_default());
        }
        bound.stdout(std::process::Stdio::null());
        bound.stderr(std::process::Stdio::null());
        Self(bound.spawn().expect("setpriv of util-linux starts"))
    }

    /// Kills the process without a warning, and waits for its end.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address of this machine that no other test uses, with free ports. Each process has addresses of its own in
/// 127.0.0.0/8, so no other program takes a port while the witness is down.
pub fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let [_, _, _, own] = number.to_be_bytes();
        let address = Ipv4Addr::new(127, own.saturating_add(64), high, low);
        // The address is this process's if nothing listens there.
        if TcpListener::bind((address, 7400)).is_ok() {
            return address;
        }
    }
}
