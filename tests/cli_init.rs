//! The set-up of two servers with nothing but the output of `lockstep init`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)] // tests may panic

use std::path::Path;
use std::process::{Command, Output};

use lockstepfs::config::{self, NodeConfig, Role};

fn lockstep(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .args(arguments)
        .output()
        .unwrap()
}

/// A directory for one test. Mount directories in it may be immutable, and so cannot be removed.
struct Root(tempfile::TempDir);

fn root() -> Root {
    Root(tempfile::tempdir().unwrap())
}

impl Root {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = Command::new("chattr")
            .arg("-R")
            .arg("-i")
            .arg(self.path())
            .output();
    }
}

/// Runs `init` for a node below `root`, and returns its JSON output.
fn init(root: &Path, name: &str, more: &[&str]) -> serde_json::Value {
    let path = |part: &str| root.join(name).join(part).display().to_string();
    let (dir, mount, store) = (path("etc"), path("mnt"), path("store"));
    let basic = [
        "init", "--json", "--name", name, "--dir", &dir, "--mount", &mount, "--store", &store,
    ];
    let output = lockstep(&[&basic, more].concat());
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &serde_json::Value, key: &str) -> String {
    value[key].as_str().unwrap().to_owned()
}

fn load(made: &serde_json::Value) -> NodeConfig {
    config::load(Path::new(&text(made, "config"))).unwrap()
}

#[test]
fn two_servers_are_set_up_by_two_commands_and_one_line() {
    let root = root();
    let to_b = ["--listen", "127.0.0.1:7401", "--peer", "127.0.0.1:7402"];
    let a = init(root.path(), "a", &to_b);
    let (uuid, fingerprint) = (text(&a, "uuid"), text(&a, "fingerprint"));
    let to_a = ["--listen", "127.0.0.1:7402", "--peer", "127.0.0.1:7401"];
    let known = ["--uuid", &uuid, "--peer-fingerprint", &fingerprint];
    let b = init(root.path(), "b", &[&to_a[..], &known[..]].concat());
    assert_eq!(
        (a["ready"].as_bool(), b["ready"].as_bool()),
        (Some(false), Some(true))
    );

    // The fingerprint of the second node goes into the configuration of the first.
    let path = text(&a, "config");
    let written = std::fs::read_to_string(&path).unwrap();
    let open = "FILL IN: fingerprint of the other node";
    std::fs::write(&path, written.replace(open, &text(&b, "fingerprint"))).unwrap();

    let (a, b) = (load(&a), load(&b));
    let (at_a, at_b) = (&a.datastores[0], &b.datastores[0]);
    assert_eq!((at_a.role, at_b.role), (Role::Primary, Role::Secondary));
    assert_eq!(at_a.uuid, at_b.uuid);
    assert_eq!(
        at_a.peer.as_ref().unwrap().address.to_string(),
        "127.0.0.1:7402"
    );
    assert_eq!(
        at_b.peer.as_ref().unwrap().fingerprint.to_string(),
        fingerprint
    );
}

#[test]
fn the_next_steps_are_printed() {
    let root = root();
    let dir = root.path().join("etc").display().to_string();
    let mount = root.path().join("mnt").display().to_string();
    let store = root.path().join("store").display().to_string();
    let output = lockstep(&[
        "init",
        "--name",
        "a",
        "--dir",
        &dir,
        "--mount",
        &mount,
        "--store",
        &store,
        "--listen",
        "192.0.2.1:7400",
    ]);
    let printed = String::from_utf8(output.stdout).unwrap();
    let config = format!("{dir}/node.toml");
    let lines = printed.split("(lines ").nth(1).unwrap();
    let lines = lines.split(')').next().unwrap().split(" and ");
    let text = std::fs::read_to_string(&config).unwrap();
    for (line, key) in lines.zip(["address = ", "fingerprint = "]) {
        let line: usize = line.parse().unwrap();
        let line = text.lines().nth(line - 1).unwrap();
        assert!(line.starts_with(key) && line.contains("FILL IN"), "{line}");
    }
    for part in [
        "lockstep init --name b",
        "--peer 192.0.2.1:7400",
        "--peer-fingerprint SHA256:",
        "lockstep node",
    ] {
        assert!(printed.contains(part), "{part} is not in:\n{printed}");
    }
}

#[test]
fn a_file_that_is_not_filled_in_is_refused_by_the_node() {
    let root = root();
    let made = init(root.path(), "a", &[]);
    let output = lockstep(&["node", "--config", &text(&made, "config")]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("has 2 mistakes") && error.contains("FILL IN"),
        "{error}"
    );
}

#[test]
fn nothing_that_exists_is_overwritten() {
    for existing in ["node.toml", "node.key", "node.crt"] {
        let root = root();
        let dir = root.path().join("etc");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join(existing), "precious").unwrap();
        let mount = root.path().join("mnt");
        let output = lockstep(&[
            "init",
            "--name",
            "a",
            "--dir",
            dir.to_str().unwrap(),
            "--mount",
            mount.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            error.contains(existing) && error.contains("cure:"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(
            std::fs::read_to_string(dir.join(existing)).unwrap(),
            "precious"
        );
        assert!(!mount.exists());
    }
}

#[test]
fn a_wrong_configuration_is_not_made() {
    let root = root();
    let dir = root.path().join("etc").display().to_string();
    let inside = format!("{dir}/store");
    let output = lockstep(&[
        "init", "--name", "a", "--dir", &dir, "--mount", &dir, "--store", &inside,
    ]);
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        error.contains("nothing was made") && error.contains("contains the store"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_failed_init_leaves_nothing_behind() {
    let root = root();
    let path = |part: &str| root.path().join(part).display().to_string();
    std::fs::write(path("file"), "").unwrap();
    let dir = path("new/etc");
    for (mount, store, expected) in [
        (path("file/mnt"), path("store"), "cannot make the directory"),
        (path("new/mnt"), path("file/store"), "Not a directory"),
    ] {
        let output = lockstep(&[
            "init", "--name", "a", "--dir", &dir, "--mount", &mount, "--store", &store,
        ]);
        assert_eq!(output.status.code(), Some(2));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(expected), "{error}");
        let left: Vec<_> = std::fs::read_dir(root.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "only what was there: {left:?}");
    }
}

/// A second identity for the same data, as after the loss of a key.
#[test]
fn an_existing_store_of_the_datastore_is_kept() {
    let root = root();
    let made = init(root.path(), "a", &[]);
    assert_eq!(made["store_made"], true);
    let (uuid, store) = (text(&made, "uuid"), text(&made, "store"));
    let again = |uuid: &str| {
        let (dir, mount) = (root.path().join("again"), root.path().join("a/mnt"));
        let (dir, mount) = (dir.to_str().unwrap(), mount.to_str().unwrap());
        let options = ["init", "--json", "--name", "a", "--role", "primary"];
        let places = [
            "--dir", dir, "--mount", mount, "--store", &store, "--uuid", uuid,
        ];
        lockstep(&[&options[..], &places[..]].concat())
    };
    let other = again("6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001");
    assert_eq!(other.status.code(), Some(2));
    assert!(!root.path().join("again").exists());
    let same = again(&uuid);
    let error = String::from_utf8_lossy(&same.stderr).into_owned();
    assert!(same.status.success(), "{error}");
    let same: serde_json::Value = serde_json::from_slice(&same.stdout).unwrap();
    assert_eq!(same["store_made"], false);
}

/// A file that a program writes while nothing is mounted is on one server, on the wrong disk, and soon hidden.
#[test]
fn the_bare_mount_directory_cannot_be_written() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let root = root();
    let made = init(root.path(), "a", &["--unmirrored"]);
    let mount = root.path().join("a/mnt");
    if made["mount_protection"] == "immutable" {
        let error = std::fs::write(mount.join("file"), "lost").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        let chattr = Command::new("chattr").arg("-i").arg(&mount).status();
        assert!(chattr.unwrap().success());
    } else {
        println!(
            "immutability not checked: the file system of {} does not support it",
            mount.display()
        );
        assert_eq!(made["mount_protection"], "read-only");
    }
    std::fs::write(mount.join("file"), "in the way").unwrap();
}

/// Each server knows the witness from its first start on, and the witness gets both nodes by copying.
#[test]
fn a_witness_that_runs_is_given_to_both_servers() {
    let root = root();
    let fingerprint = format!("SHA256:{}", "3".repeat(64));
    let ask = format!("192.0.2.3:7400={fingerprint}");
    let printed = |name: &str, options: &[&str]| {
        let path = |part: &str| root.path().join(name).join(part).display().to_string();
        let (dir, mount, store) = (path("etc"), path("mnt"), path("store"));
        let places = ["--dir", &dir, "--mount", &mount, "--store", &store];
        let output = lockstep(&[&["init", "--name", name], &places[..], options].concat());
        assert!(output.status.success(), "{output:?}");
        let config = std::fs::read_to_string(format!("{dir}/node.toml")).unwrap();
        (String::from_utf8(output.stdout).unwrap(), config)
    };
    let own_address = ["--listen", "192.0.2.1:7400", "--peer", "192.0.2.2:7400"];
    let (steps, config) = printed("a", &[&own_address[..], &["--ask-witness", &ask]].concat());
    let section = format!(
        "[datastore.witness]\naddress = \"192.0.2.3:7400\"\nfingerprint = \"{fingerprint}\"\n"
    );
    assert!(config.contains(&section), "{config}");
    assert!(config.contains("failover_after_ms = 1500"), "{config}");
    assert!(!config.contains("pause_limit_ms"), "{config}");
    for part in [
        format!("--ask-witness {ask}"),
        "On the witness at 192.0.2.3:7400".to_owned(),
        "[[node]]\n       name = \"a\"\n       fingerprint = \"SHA256:".to_owned(),
    ] {
        assert!(steps.contains(&part), "{part} is not in:\n{steps}");
    }
    assert!(!steps.contains("lockstep init --witness"), "{steps}");
    let (steps, config) = printed(
        "b",
        &["--ask-etcd", "http://e:1", "--ask-etcd", "http://f:1"],
    );
    assert!(config.contains("etcd = [\"http://e:1\", \"http://f:1\"]"));
    assert!(
        steps.contains("--ask-etcd http://e:1 --ask-etcd http://f:1"),
        "{steps}"
    );
    assert!(!steps.contains("witness.toml"), "{steps}");
}

/// The second server knows both fingerprints, and prints the command that makes a witness of them.
#[test]
fn a_witness_can_be_made_later_with_the_printed_command() {
    let root = root();
    let path = |part: &str| root.path().join(part).display().to_string();
    let (dir, mount, store) = (path("etc"), path("mnt"), path("store"));
    let places = ["--dir", &dir, "--mount", &mount, "--store", &store];
    let peer = format!("SHA256:{}", "2".repeat(64));
    let known = ["--peer", "192.0.2.1:7400", "--peer-fingerprint", &peer];
    let output = lockstep(&[&["init", "--name", "b"], &places[..], &known].concat());
    let steps = String::from_utf8(output.stdout).unwrap();
    let (_, command) = steps.split_once("lockstep init --witness").unwrap();
    let command = command.split("\n\n").next().unwrap().replace(" \\\n", " ");
    let words: Vec<_> = command.split_whitespace().collect();
    let allowed: Vec<_> = words
        .iter()
        .filter(|word| word.contains("=SHA256:"))
        .collect();
    assert_eq!(allowed[0], &format!("a={peer}"));
    assert!(
        allowed[1].starts_with("b=SHA256:") && allowed.len() == 2,
        "{words:?}"
    );
    // The command works as it stands, but for the address and for the places of this test.
    let words = words
        .iter()
        .map(|word| word.replace("ADDRESS-OF-THAT-SERVER", "192.0.2.3"));
    let words: Vec<_> = words.collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let (dir, store) = (path("w/etc"), path("w/store"));
    let places = ["--dir", &dir, "--store", &store];
    let output = lockstep(&[&["init", "--witness"], &words[..], &places].concat());
    assert!(output.status.success(), "{output:?}");
    let steps = String::from_utf8(output.stdout).unwrap();
    let (_, section) = steps.split_once("       [datastore.witness]\n").unwrap();
    let section: Vec<_> = section.lines().take(2).map(str::trim).collect();
    // The printed section at the end of node.toml, as printed, is a valid configuration of that witness.
    let file = path("etc/node.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = format!("{text}\n[datastore.witness]\n{}\n", section.join("\n"));
    let node = config::parse(&text, Path::new(&file)).unwrap();
    assert_eq!(node.witnesses.len(), 1);
    assert_eq!(node.witnesses[0].1.address(), "192.0.2.3:7400");
}

#[test]
fn wrong_options_for_a_witness_make_nothing() {
    let root = root();
    let dir = root.path().join("etc").display().to_string();
    let good = format!("192.0.2.3:7400=SHA256:{}", "3".repeat(64));
    for (options, expected) in [
        (
            &["--ask-witness", "192.0.2.3:7400"][..],
            "HOST:PORT=FINGERPRINT",
        ),
        (&["--ask-witness", "x=SHA256:1"], "is not HOST:PORT"),
        (&["--ask-witness", "x:1=SHA256:1"], "SHA256:1"),
        (&["--ask-etcd", "https://e:1"], "http://"),
        (
            &["--ask-witness", &good, "--ask-etcd", "http://e:1"],
            "cannot be used with",
        ),
        (
            &["--ask-witness", &good, "--unmirrored"],
            "cannot be used with",
        ),
        (
            &["--ask-witness", &good, "--witness"],
            "cannot be used with",
        ),
        (
            &["--listen", "192.0.2.3:7400", "--ask-witness", &good],
            "is this node itself",
        ),
    ] {
        let output = lockstep(&[&["init", "--name", "a", "--dir", &dir], options].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

/// Also beside options that a witness cannot have.
#[test]
fn nodes_for_a_witness_make_no_node() {
    let root = root();
    let path = |part: &str| root.path().join(part).display().to_string();
    let (dir, mount, store) = (path("etc"), path("mnt"), path("store"));
    let allowed = format!("b=SHA256:{}", "3".repeat(64));
    let node = [
        "init", "--name", "a", "--dir", &dir, "--store", &store, "--allow", &allowed,
    ];
    for more in [&[][..], &["--mount", &mount], &["--unmirrored"]] {
        let output = lockstep(&[&node, more].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("cure: add --witness"), "{error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

#[test]
fn the_configuration_of_ganesha_is_printed_and_what_it_lacks_is_said() {
    let root = root();
    let to_b = ["--listen", "127.0.0.1:7401", "--peer", "127.0.0.1:7402"];
    let fingerprint = text(&init(root.path(), "b", &to_b), "fingerprint");
    let known = ["--peer-fingerprint", &fingerprint];
    let config = text(
        &init(root.path(), "a", &[&to_b[..], &known].concat()),
        "config",
    );
    let print = |name: &str, options: &[&str]| {
        let command = ["ganesha-config", name, "--config", &config];
        let printed = lockstep(&[&command, options].concat());
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (output, error) = (words(&printed.stdout), words(&printed.stderr));
        (printed.status.code(), output, error)
    };

    let (code, output, error) = print("data", &[]);
    assert_eq!(code, Some(0), "{error}");
    let mount = root.path().join("a/mnt");
    assert!(output.contains(&format!("Path = \"{}\";", mount.display())));
    for lack in ["--clients", "standby = \"eagain\""] {
        assert!(error.contains(lack), "{error}");
    }

    let text = std::fs::read_to_string(&config).unwrap();
    let ready = text.replace("standby = \"erofs\"", "standby = \"eagain\"");
    std::fs::write(&config, ready).unwrap();
    let (code, output, error) = print("data", &["--clients", "10.0.0.0/24,host", "--nfs", "4"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(output.contains("Clients = 10.0.0.0/24, host;") && output.contains("Protocols = 4;"));

    for (name, options, cause) in [
        ("dta", &[][..], "name one of: data"),
        ("data", &["--clients", "a;b"], "10.0.0.0/24"),
        ("data", &["--nfs", "2"], "possible values"),
    ] {
        let (code, output, error) = print(name, options);
        assert_eq!((code, output.as_str()), (Some(2), ""), "{error}");
        assert!(error.contains(cause), "{error}");
    }
}
