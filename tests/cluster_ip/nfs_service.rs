//! NFS-Ganesha as the service manager of a server runs it: restarted and stopped by a program, as `systemctl` does it.
//!
//! The program is what `lockstep ganesha-follow` gets in place of `systemctl`. The manager is a shell in the network of the
//! server.
//!
//! Invariant: the manager and Ganesha are gone when [`NfsService`] is dropped, or when the test is killed.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::network::{Host, Lan};
use crate::server_space::{NAMESPACES, SERVES, START};

/// The manager: `sh -c MANAGE sh MOUNT CONFIGURATION LOG REQUESTS START SERVES`. A request is a file; it is removed once it is
/// carried out. A killed Ganesha takes all processes of its namespace along.
const MANAGE: &str = r#"
end() {
    [ -n "$server" ] || return
    kill -9 $(cat "/proc/$server/task/$server/children")
    wait "$server"
    server=
}
start() {
    : >"$3"
    setpriv --pdeathsig KILL -- unshare NAMESPACES sh -c "$5" sh "$1" "$2" "$3" &
    server=$!
    until grep -q "$6" "$3"; do
        kill -0 "$server" || return
        sleep 0.02
    done
}
while [ -d "$4" ]; do
    for request in "$4"/*.restart "$4"/*.stop; do
        [ -e "$request" ] || continue
        end
        case $request in
        *.restart) start "$@"; echo "started" ;;
        *) echo "stopped" ;;
        esac
        rm -f "$request"
    done
    sleep 0.02
done
"#;

/// See the head of this file.
pub struct NfsService {
    manager: Child,
    log: PathBuf,
}

impl NfsService {
    /// Starts the manager of a server. Ganesha starts when a hook asks for that.
    pub fn start(lan: &Lan, host: Host, directory: &Path) -> Self {
        let path = |name: &str| directory.join(name);
        let log = path("ganesha.log");
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path("manager.log"))
            .unwrap();
        let manage = MANAGE.replace("NAMESPACES", &NAMESPACES.join(" "));
        let mut command = lan.of(host).command();
        command
            .args(["sh", "-c", &manage, "sh"])
            .args([
                path("mount"),
                path("ganesha.conf"),
                log.clone(),
                path("requests"),
            ])
            .args([START, SERVES])
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        Self {
            manager: command.spawn().unwrap(),
            log,
        }
    }
}

impl NfsService {
    /// Suspends Ganesha, which then answers nothing.
    pub fn suspend(&self) {
        let found = ganeshas(self.manager.id());
        assert!(!found.is_empty(), "no Ganesha runs");
        for pid in found {
            let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
            kill_process(pid, Signal::STOP).unwrap();
        }
    }

    /// How often Ganesha has started.
    pub fn starts(&self) -> usize {
        let log = self.log.with_file_name("manager.log");
        let log = fs::read_to_string(log).unwrap();
        log.lines().filter(|line| *line == "started").count()
    }
}

/// The processes of Ganesha below a process.
fn ganeshas(below: u32) -> Vec<u32> {
    let place = format!("/proc/{below}");
    let children = fs::read_to_string(format!("{place}/task/{below}/children"));
    let children = children.unwrap_or_default();
    let name = fs::read_to_string(format!("{place}/comm")).unwrap_or_default();
    let own = name.starts_with("ganesha").then_some(below);
    let children = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    children.flat_map(ganeshas).chain(own).collect()
}

impl Drop for NfsService {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log);
            println!("{}", log.unwrap_or_default());
        }
        let _ = self.manager.kill();
        let _ = self.manager.wait();
    }
}
