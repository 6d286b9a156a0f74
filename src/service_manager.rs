//! The service manager of this process: systemd, or any program that reads the same messages.
//!
//! The protocol is `sd_notify(3)`: datagrams to the Unix socket that `NOTIFY_SOCKET` names. `lockstep node --background`
//! reads the same messages. Without that variable nothing is sent. An error of sending is ignored: the service manager
//! may have gone, which does not affect this process.

use lockstep_mount::hold::NotifySocket;
use rustix::net::{SendFlags, sendto};

/// The service manager, if there is one.
#[derive(Debug)]
pub struct ServiceManager(Option<NotifySocket>);

impl ServiceManager {
    /// Reads the environment of this process.
    pub fn from_environment() -> Self {
        Self(NotifySocket::from_environment())
    }

    /// Whether there is one.
    pub const fn exists(&self) -> bool {
        self.0.is_some()
    }

    /// Reports that the service answers requests, with a status for people.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}", one_line(status)));
    }

    /// Reports a new status for people, or the error with which the service ends.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={}", one_line(status)));
    }

    /// Reports that the service makes progress.
    pub fn keep_alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Reports that the service begins to stop.
    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    fn send(&self, message: &str) {
        if let Self(Some(NotifySocket { address, socket })) = self {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _sent = sendto(socket, message.as_bytes(), flags, address);
        }
    }
}

/// Joins the lines of a text into one line, for the log and the status.
pub fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}
