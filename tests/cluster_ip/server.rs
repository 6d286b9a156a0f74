//! A server: a node of Lockstep and keepalived in the network namespace of the server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use lockstep_driver::report::{DatastoreStatus, RoleReport};
use lockstep_link::Fingerprint;
use lockstep_testbed::holder::Holder;
use lockstep_testbed::{
    DATASTORE, Node, NodeConfig, NodeEnvironment, PeerConfig, Process, await_that, logged_command,
};
use lockstepfs::config::Role;
use rustix::process::{Pid, Signal, kill_process};

use crate::network::{ADDRESS, Host, Lan};
use crate::request::write_program;
use crate::watch::has_now;

const PORT: u16 = 7400;
const LOG_TAIL_LINES: usize = 40;

/// See the head of this file. The fields end in this order.
pub struct Server {
    host: Host,
    program: PathBuf,
    keepalived: Option<Process>,
    /// Asks for another keepalived in place of one that hangs.
    watch: Option<Process>,
    node: Node,
    /// Keeps the mount while the node restarts.
    holder: Option<Holder>,
}

fn node(root: &Path, host: Host) -> Node {
    Node::make(root, &format!("{host:?}"), NodeEnvironment::default())
}

/// Makes the program and the identities of both servers, and returns the fingerprints.
pub fn identify(root: &Path) -> [Fingerprint; 2] {
    // A copy by this process may still be open for writing in a process that another thread starts: "Text file busy".
    let copied = Command::new("cp")
        .arg(lockstep_testbed::program())
        .arg(program(root))
        .status();
    assert!(copied.unwrap().success());
    [Host::A, Host::B].map(|host| node(root, host).identify())
}

/// The program where only root can replace it, as keepalived demands.
pub fn program(root: &Path) -> PathBuf {
    root.join("lockstep")
}

/// Makes both servers, and starts nothing. `settings` are lines of the datastore's configuration, and `witness` is its
/// section for the witness, if there is one.
pub fn pair(root: &Path, prints: &[Fingerprint; 2], settings: &str, witness: &str) -> [Server; 2] {
    let hosts = [(Host::A, "primary"), (Host::B, "secondary")];
    let server = |own: usize| {
        let ((host, role), other) = (hosts[own], 1 - own);
        let node = node(root, host);
        node.configure(&NodeConfig {
            role,
            settings: format!("{settings}\n"),
            peer: Some(PeerConfig {
                listen: (host.ip(), PORT).into(),
                address: (hosts[other].0.ip(), PORT).into(),
                fingerprint: prints[other],
                encryption: "on",
            }),
        });
        node.add_to_config(witness);
        node.make_store();
        Server {
            host,
            program: program(root),
            keepalived: None,
            watch: None,
            node,
            holder: None,
        }
    };
    [server(0), server(1)]
}

impl Server {
    /// The mount of the datastore.
    pub fn mount(&self) -> PathBuf {
        self.node.mount()
    }

    /// Runs `lockstep COMMAND data`.
    pub fn lockstep(&self, command: &str, options: &[&str]) -> Output {
        let mut bounded = Command::new("timeout");
        bounded
            .arg("120")
            .arg(&self.program)
            .args([command, DATASTORE, "--config"])
            .arg(self.node.config())
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
        self.node.status()
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
    fn start(&self, lan: &Lan, name: &str, words: &[&str]) -> Process {
        let log = self.node.dir().join(format!("{name}.log"));
        let mut command = logged_command(words[0], &log);
        let child = lan.of(self.host).spawn(command.args(&words[1..]));
        Process::of(name, child.unwrap())
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
        let network = lan.of(self.host);
        let holder = Holder::start_by(&self.node, |command| network.spawn(command));
        self.holder = Some(holder);
    }

    /// Starts the node.
    pub fn start_node(&mut self, lan: &Lan) {
        let network = lan.of(self.host);
        self.node.start_by(|command| network.spawn(command));
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
        let path = |name: &str| self.node.dir().join(name).display().to_string();
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
        let keepalived = self.start(lan, "keepalived", &words);
        assert!(self.keepalived.replace(keepalived).is_none());
    }

    /// Ends keepalived as an administrator does.
    pub fn stop_keepalived(&mut self) {
        let mut keepalived = self.keepalived.take().unwrap();
        keepalived.signal(Signal::TERM);
        await_that("keepalived to end", || keepalived.ended().is_some());
    }

    /// Sends a signal to both processes of keepalived.
    pub fn signal_keepalived(&self, signal: Signal) {
        for child in self.keepalived_children() {
            kill_process(child, signal).unwrap();
        }
        self.keepalived.as_ref().unwrap().signal(signal);
    }

    fn keepalived_children(&self) -> Vec<Pid> {
        let parent = self.keepalived.as_ref().unwrap().pid();
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap();
        let pids = children.split_whitespace().map(|pid| pid.parse().unwrap());
        pids.map(|pid| Pid::from_raw(pid).unwrap()).collect()
    }

    /// Starts the command that watches keepalived. Its program leaves a request in a file, and waits until that is gone.
    pub fn start_watch(&mut self, lan: &Lan) {
        let asked = write_program(self.node.dir());
        let (program, config) = (self.program.to_str().unwrap(), self.node.config());
        let words = [
            program,
            "keepalived-watch",
            DATASTORE,
            "--config",
            config.to_str().unwrap(),
            "--program",
            asked.to_str().unwrap(),
        ];
        let watch = self.start(lan, "watch", &words);
        assert!(self.watch.replace(watch).is_none());
    }

    /// Waits until the watch asks for another keepalived, and does what systemd does then.
    pub fn restart_keepalived_as_asked(&mut self, lan: &Lan) {
        let requests = self.node.dir().join("requests");
        let mut request = None;
        await_that("a request for another keepalived", || {
            let found = fs::read_dir(&requests).unwrap().next();
            request = found.map(|entry| entry.unwrap().path());
            request.is_some()
        });
        let children = self.keepalived_children();
        self.signal_keepalived(Signal::KILL);
        self.keepalived = None;
        // keepalived does not start while the process of its predecessor is there, be it dead.
        await_that("the end of keepalived", || {
            let is_gone = |pid: &Pid| !Path::new(&format!("/proc/{pid}")).exists();
            children.iter().all(is_gone)
        });
        self.start_keepalived(lan);
        fs::remove_file(request.unwrap()).unwrap();
    }

    /// Ends keepalived as a loss of power does. Its child ends with it, and removes the address.
    pub fn kill_keepalived(&mut self) {
        self.keepalived = None;
    }

    /// Ends the node with SIGKILL, as a crash does. Its mount stays if there is a holder.
    pub fn kill_node(&mut self) {
        self.node.kill();
        if self.holder.is_none() {
            self.node.clear();
        }
    }

    /// Sends a signal to the node.
    pub fn signal(&self, signal: Signal) {
        self.node.process().signal(signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.node.dir().join("keepalived.log");
            let log = fs::read_to_string(log).unwrap_or_default();
            let skipped = log.lines().count().saturating_sub(LOG_TAIL_LINES);
            let tail: Vec<&str> = log.lines().skip(skipped).collect();
            println!(
                "end of the log of keepalived of {:?}:\n{}",
                self.host,
                tail.join("\n")
            );
        }
    }
}
