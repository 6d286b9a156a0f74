//! Samba over the mount: the previous versions of a file, as Windows shows them.

use std::fs;
use std::path::Path;
use std::process::Command;

use lockstep_testbed::{
    DATASTORE, NodeEnvironment, PATIENT, Pair, Process, await_that, can_mount, logged_command,
};

use super::done;

/// The test has a network of its own.
const PORT: &str = "4450";

/// The lines of docs/operations/snapshots.md, in the configuration of a server that keeps all its files in one directory.
fn configuration(directory: &Path, mount: &Path) -> String {
    let keeps = [
        "private dir",
        "lock directory",
        "state directory",
        "cache directory",
        "pid directory",
        "ncalrpc dir",
    ];
    let keeps = keeps
        .map(|key| format!("{key} = {}\n", directory.display()))
        .concat();
    format!(
        "[global]\nserver role = standalone server\ninterfaces = 127.0.0.1\nbind interfaces only = yes\n\
         smb ports = {PORT}\n{keeps}log file = {}/log\nmap to guest = Bad User\nguest account = root\n\
         [data]\npath = {}\nguest ok = yes\nread only = no\n\
         vfs objects = shadow_copy2\nshadow:snapdir = .lockstep/snapshots\nshadow:sort = desc\n",
        directory.display(),
        mount.display()
    )
}

/// The output of a client.
fn client(config: &Path, commands: &str) -> Option<String> {
    let mut client = Command::new("smbclient");
    client
        .args(["//127.0.0.1/data", "-N", "-p", PORT, "-s"])
        .arg(config);
    let output = client.args(["-c", commands]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

#[test]
fn samba_shows_snapshots_as_previous_versions() {
    const NAMES: [&str; 2] = ["@GMT-2026.11.29-12.00.00", "@GMT-2026.11.30-12.00.00"];
    if !can_mount() {
        return;
    }
    let mut pair = Pair::prepare(PATIENT, [(); 2].map(|()| NodeEnvironment::default()));
    pair.start();
    let directory = pair.outside("samba");
    fs::create_dir(&directory).unwrap();
    let config = directory.join("smb.conf");
    fs::write(&config, configuration(&directory, &pair.mount())).unwrap();
    fs::create_dir(pair.mount().join("papers")).unwrap();
    let file = pair.mount().join("papers/plan");
    for (name, text) in NAMES.iter().zip(["old", "newer"]) {
        fs::write(&file, text).unwrap();
        done(&pair.primary, &["create", DATASTORE, name]);
    }
    fs::remove_file(&file).unwrap();
    fs::write(&file, "newest").unwrap();

    let mut server = logged_command("smbd", &directory.join("output"));
    server
        .args(["--foreground", "--no-process-group", "--configfile"])
        .arg(&config);
    let server = Process::start("smbd", &mut server);
    await_that("the server", || client(&config, "ls").is_some());
    let listed = client(&config, "ls").unwrap();
    assert!(
        listed.contains("papers") && !listed.contains("lockstep"),
        "{listed}"
    );
    let info = client(&config, "allinfo papers/plan").unwrap();
    let versions: Vec<&str> = info.lines().filter(|line| line.starts_with('@')).collect();
    assert_eq!(versions, [NAMES[1], NAMES[0]], "{info}");
    for (name, text) in NAMES.iter().zip(["old", "newer"]) {
        let got = directory.join(name);
        let get = format!("get {name}/papers/plan {}", got.display());
        client(&config, &get).unwrap();
        assert_eq!(fs::read_to_string(got).unwrap(), text);
    }
    drop(server);
    pair.stop();
}
