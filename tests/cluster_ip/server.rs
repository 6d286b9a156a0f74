//! A server: a node of Lockstep and keepalived in the network namespace of the server.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use lockstep_driver::report::{DatastoreStatus, RoleReport};
use lockstep_link::identity::Identity;
use lockstep_mount::hold::socket_path;
use lockstepfs::config::Role;
use lockstepfs::control::ControlClient;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::network::{ADDRESS, Host, Lan};
use crate::request::write_program;
use crate::watch::has_now;
use lockstep_testbed::await_that;

const PROGRAM: &str = env!("CARGO_BIN_EXE_lockstep");
const DATASTORE: &str = "data";
const PORT: u16 = 7400;
const LOG_TAIL_LINES: usize = 40;

/// See the head of this file. A drop ends its processes and its mount.
pub struct Server {
    host: Host,
    directory: PathBuf,
    program: PathBuf,
    node: Option<Child>,
    /// Keeps the mount while the node restarts.
    holder: Option<Child>,
    keepalived: Option<Child>,
    /// Asks for another keepalived in place of one that hangs.
    watch: Option<Child>,
}

/// Makes the program and the identities of both servers, and returns the fingerprints.
pub fn identify(root: &Path) -> [String; 2] {
    // A copy by this process may still be open for writing in a process that another thread starts: "Text file busy".
    let copied = Command::new("cp").arg(PROGRAM).arg(program(root)).status();
    assert!(copied.unwrap().success());
    [Host::A, Host::B].map(|host| {
        let directory = root.join(format!("{host:?}"));
        fs::create_dir_all(directory.join("mount")).unwrap();
        let identity = Identity::create(&directory, &format!("{host:?}")).unwrap();
        identity.fingerprint().to_string()
    })
}

/// The program where only root can replace it, as keepalived demands.
pub fn program(root: &Path) -> PathBuf {
    root.join("lockstep")
}

/// Makes both servers, and starts nothing. `settings` are lines of the datastore's configuration, and `witness` is its
/// section for the witness, if there is one.
pub fn pair(root: &Path, prints: &[String; 2], settings: &str, witness: &str) -> [Server; 2] {
    let hosts = [(Host::A, "primary"), (Host::B, "secondary")];
    let server = |own: usize| {
        let ((host, role), other) = (hosts[own], 1 - own);
        let server = Server {
            host,
            directory: root.join(format!("{host:?}")),
            program: program(root),
            node: None,
            holder: None,
            keepalived: None,
            watch: None,
        };
        let (dir, own, peer) = (server.directory.display(), host.ip(), hosts[other].0.ip());
        let fingerprint = &prints[other];
        let text = format!(
            "[node]\nname = \"{host:?}\"\nidentity = \"{dir}\"\nlisten = \"{own}:{PORT}\"\ncontrol = \"{dir}/control.sock\"\n\n\
             [[datastore]]\nname = \"{DATASTORE}\"\nuuid = \"6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a007\"\nrole = \"{role}\"\n\
             store = \"{dir}/store\"\nmount = \"{dir}/mount\"\n{settings}\n\n\
             [datastore.peer]\naddress = \"{peer}:{PORT}\"\nfingerprint = \"{fingerprint}\"\n{witness}"
        );
        fs::write(server.config(), text).unwrap();
        let made = server.lockstep("create-store", &[]);
        assert!(made.status.success(), "{made:?}");
        server
    };
    [server(0), server(1)]
}

impl Server {
    fn config(&self) -> PathBuf {
        self.directory.join("node.toml")
    }

    /// The mount of the datastore.
    pub fn mount(&self) -> PathBuf {
        self.directory.join("mount")
    }

    /// Runs `lockstep COMMAND data`.
    pub fn lockstep(&self, command: &str, options: &[&str]) -> Output {
        let mut bounded = Command::new("timeout");
        bounded
            .arg("120")
            .arg(&self.program)
            .args([command, DATASTORE, "--config"])
            .arg(self.config())
            .args(options)
            .stdin(Stdio::null());
        bounded.output().unwrap()
    }

    /// Runs a command that changes the role.
    pub fn change_role(&self, command: &str) {
        let done = self.lockstep(command, &[]);
        assert!(done.status.success(), "{command}: {done:?}");
        println!("{}", String::from_utf8_lossy(&done.stdout).trim_end());
    }

    /// Gives the role of this node to the other one. The address leaves this server before the role does.
    pub fn fail_over(&self, lan: &Lan) {
        thread::scope(|scope| {
            let command = scope.spawn(|| self.lockstep("failover", &["--json"]));
            await_that("the end of the role", || {
                self.status()
                    .is_some_and(|status| status.settings.role == Role::Secondary)
                    || command.is_finished()
            });
            assert!(
                !has_now(lan, self.host),
                "the role has left before the address"
            );
            let done = command.join().unwrap();
            assert!(done.status.success(), "{done:?}");
            let report: RoleReport = serde_json::from_slice(&done.stdout).unwrap();
            println!("{report:?}");
            let departure = report.address.expect("the address was here");
            assert!(departure.left, "{departure:?}");
        });
    }

    /// The exit code of `lockstep health`.
    pub fn health(&self) -> Option<i32> {
        self.lockstep("health", &[]).status.code()
    }

    /// The node's status of the datastore; `None` if the node does not answer.
    pub fn status(&self) -> Option<DatastoreStatus> {
        let mut client = ControlClient::connect(&self.directory.join("control.sock")).ok()?;
        client.status().ok()?.datastores.pop()
    }

    /// Waits until the node has this role, and both nodes are in sync.
    pub fn await_in_sync(&self, role: Role) {
        await_that(
            &format!("{:?} to be the {role:?} in sync", self.host),
            || {
                self.status()
                    .is_some_and(|status| status.sync.in_sync && status.settings.role == role)
            },
        );
    }

    /// Starts a program of this server, with its output in a file.
    fn start(&self, lan: &Lan, words: &[&str], log: &str) -> Child {
        let path = self.directory.join(log);
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        let mut command = lan.of(self.host).command();
        let command = command
            .args(words)
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        command.spawn().unwrap()
    }

    /// Waits until the status of the node is as wanted.
    pub fn await_status(&self, what: &str, is: impl Fn(&DatastoreStatus) -> bool) {
        await_that(&format!("{what} at {:?}", self.host), || {
            self.status().is_some_and(|status| is(&status))
        });
    }

    /// Waits until the node has lost its connection with the other one.
    pub fn await_cut_off(&self) {
        self.await_status("the loss of the connection", |status| {
            status.peer.as_ref().is_some_and(|peer| !peer.connected)
        });
    }

    /// Waits until the node hears of the witness, or does not.
    pub fn await_witness(&self, answers: bool) {
        self.await_status("a change of the witness's answer", |status| {
            let witness = status.witness.as_ref().unwrap();
            witness.answers == answers && witness.trouble.is_some() != answers
        });
    }

    /// Starts a holder of the mount, before the node.
    pub fn start_holder(&mut self, lan: &Lan) {
        let (program, config) = (self.program.to_str().unwrap(), self.config());
        let words = [program, "hold", "--config", config.to_str().unwrap()];
        self.holder = Some(self.start(lan, &words, "hold.log"));
        let socket = socket_path(&self.directory.join("control.sock"));
        await_that("the holder", || socket.exists());
    }

    /// Starts the node.
    pub fn start_node(&mut self, lan: &Lan) {
        let (program, config) = (self.program.to_str().unwrap(), self.config());
        let words = [program, "node", "--config", config.to_str().unwrap()];
        let node = self.start(lan, &words, "node.log");
        assert!(self.node.replace(node).is_none());
    }

    /// Starts keepalived with the configuration that the command prints.
    pub fn start_keepalived(&mut self, lan: &Lan) {
        self.start_keepalived_with(lan, &[]);
    }

    /// The same, with further options of the command.
    pub fn start_keepalived_with(&mut self, lan: &Lan, more: &[&str]) {
        let address = format!("{ADDRESS}/24");
        let program = self.program.to_str().unwrap();
        let options = [
            "--address",
            &address,
            "--interface",
            "eth0",
            "--program",
            program,
        ];
        let printed = self.lockstep("keepalived-config", &[&options, more].concat());
        assert!(printed.status.success(), "{printed:?}");
        let path = |name: &str| self.directory.join(name).display().to_string();
        let (file, pid, vrrp_pid) = (
            path("keepalived.conf"),
            path("keepalived.pid"),
            path("vrrp.pid"),
        );
        fs::write(&file, printed.stdout).unwrap();
        let words = [
            "keepalived",
            "--dont-fork",
            "--log-console",
            "--log-detail",
            "--vrrp",
            "--use-file",
            &file,
            "--pid",
            &pid,
            "--vrrp_pid",
            &vrrp_pid,
        ];
        let keepalived = self.start(lan, &words, "keepalived.log");
        assert!(self.keepalived.replace(keepalived).is_none());
    }

    /// Ends keepalived as an administrator does.
    pub fn stop_keepalived(&mut self) {
        let mut keepalived = self.keepalived.take().unwrap();
        kill_process(Pid::from_child(&keepalived), Signal::TERM).unwrap();
        await_that("keepalived to end", || {
            keepalived.try_wait().unwrap().is_some()
        });
    }

    /// Sends a signal to both processes of keepalived.
    pub fn signal_keepalived(&self, signal: Signal) {
        for child in self.keepalived_children() {
            kill_process(child, signal).unwrap();
        }
        let parent = Pid::from_child(self.keepalived.as_ref().unwrap());
        kill_process(parent, signal).unwrap();
    }

    fn keepalived_children(&self) -> Vec<Pid> {
        let parent = self.keepalived.as_ref().unwrap().id();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap();
        let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
        pids.map(|pid| Pid::from_raw(pid).unwrap()).collect()
    }

    /// Starts the command that watches keepalived. Its program leaves a request in a file, and waits until that is gone.
    pub fn start_watch(&mut self, lan: &Lan) {
        let asked = write_program(&self.directory);
        let (program, config) = (self.program.to_str().unwrap(), self.config());
        let words = [
            program,
            "keepalived-watch",
            DATASTORE,
            "--config",
            config.to_str().unwrap(),
            "--program",
            asked.to_str().unwrap(),
        ];
        let watch = self.start(lan, &words, "watch.log");
        assert!(self.watch.replace(watch).is_none());
    }

    /// Waits until the watch asks for another keepalived, and does what systemd does then.
    pub fn restart_keepalived_as_asked(&mut self, lan: &Lan) {
        let requests = self.directory.join("requests");
        let mut request = None;
        await_that("a request for another keepalived", || {
            let found = fs::read_dir(&requests).unwrap().next();
            request = found.map(|entry| entry.unwrap().path());
            request.is_some()
        });
        let children = self.keepalived_children();
        self.signal_keepalived(Signal::KILL);
        self.keepalived.take().unwrap().wait().unwrap();
        // keepalived does not start while the process of its predecessor is there, be it dead.
        await_that("the end of keepalived", || {
            let is_gone = |pid: &Pid| !Path::new(&format!("/proc/{pid}")).exists();
            children.iter().all(is_gone)
        });
        self.start_keepalived(lan);
        fs::remove_file(request.unwrap()).unwrap();
    }

    /// Ends keepalived as a loss of power does.
    pub fn kill_keepalived(&mut self) {
        if let Some(mut keepalived) = self.keepalived.take() {
            // Its child ends with it, and removes the address.
            let _ = keepalived.kill();
            let _ = keepalived.wait();
        }
    }

    /// Ends the node with SIGKILL, as a crash does. Its mount stays if there is a holder.
    pub fn kill_node(&mut self) {
        self.signal(Signal::KILL);
        self.node.take().unwrap().wait().unwrap();
        if self.holder.is_none() {
            self.unmount();
        }
    }

    /// Sends a signal to the node.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.node.as_ref().unwrap()), signal).unwrap();
    }

    fn unmount(&self) {
        while rustix::mount::unmount(self.mount(), UnmountFlags::DETACH).is_ok() {}
    }

    fn report(&self) {
        for name in ["node.log", "keepalived.log"] {
            let log = fs::read_to_string(self.directory.join(name)).unwrap_or_default();
            let skipped = log.lines().count().saturating_sub(LOG_TAIL_LINES);
            let tail: Vec<&str> = log.lines().skip(skipped).collect();
            println!("end of {name} of {:?}:\n{}", self.host, tail.join("\n"));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.report();
        }
        self.kill_keepalived();
        let others = [self.watch.take(), self.node.take(), self.holder.take()];
        for mut process in others.into_iter().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
        self.unmount();
    }
}
