//! Network namespaces of a test: servers with fixed ports run side by side, and nothing of the machine is in their way.
//!
//! A namespace has its own loopback network and nothing else. It vanishes with its last process and with
//! [`NetNamespace`].

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace.
pub struct NetNamespace(File);

impl NetNamespace {
    /// A new one, with its loopback network up.
    pub fn new() -> Self {
        let made = thread::spawn(|| {
            // SAFETY: the flag separates neither memory nor descriptors.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            let up = Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status();
            assert!(up.unwrap().success());
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        Self(made.join().unwrap())
    }

    /// Runs `work` inside. Sockets that it makes stay inside.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.0.as_fd(), kind).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    /// Connects to a server inside.
    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.inside(|| TcpStream::connect(to))
    }

    /// Listens inside.
    pub fn listen(&self, on: SocketAddr) -> TcpListener {
        self.inside(|| TcpListener::bind(on).unwrap())
    }

    /// A command that runs a program inside. The program dies with the thread that starts it.
    pub fn command(&self, program: &str) -> Command {
        let (process, file) = (std::process::id(), self.0.as_raw_fd());
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "nsenter"]);
        command.arg(format!("--net=/proc/{process}/fd/{file}"));
        command.arg(program);
        command
    }
}
