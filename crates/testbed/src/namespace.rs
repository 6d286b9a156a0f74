//! Network namespaces of a test: servers with fixed ports run side by side, and nothing of the machine is in their way.
//!
//! A namespace begins with its own loopback network and nothing else. It vanishes with its last process and with the last
//! handle, so nothing is left behind, however the test ends.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// A network namespace.
pub struct NetNamespace(File);

impl NetNamespace {
    /// A new one, with its loopback network up.
    #[must_use]
    pub fn make() -> Self {
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

    /// Another handle of the namespace.
    #[must_use]
    pub fn handle(&self) -> Self {
        Self(self.0.try_clone().unwrap())
    }

    /// Moves the calling thread into the namespace. Its sockets and its new threads belong there from now on.
    pub fn enter(&self) {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(self.0.as_fd(), kind).unwrap();
    }

    /// Runs `work` inside. Sockets that it makes stay inside.
    fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            self.enter();
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    /// The file that stands for the namespace while this handle lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Connects to a server inside.
    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.inside(|| TcpStream::connect(to))
    }

    /// Listens inside.
    pub fn listen(&self, on: SocketAddr) -> TcpListener {
        self.inside(|| TcpListener::bind(on).unwrap())
    }

    /// Starts a program inside.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let namespace = self.0.try_clone()?;
        let enter = move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind)?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes one system call and allocates nothing.
        unsafe { command.pre_exec(enter) };
        command.spawn()
    }

    /// A command that runs its arguments inside. The program dies with the thread that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "nsenter"])
            .arg(format!("--net={}", self.path()))
            .arg("--")
            .stdin(Stdio::null());
        command
    }
}
