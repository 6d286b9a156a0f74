//! The place in which NFS-Ganesha runs on a server of a test: namespaces of its own, with the ports, paths and configuration
//! of a real installation.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Where both servers mount the datastore.
pub const EXPORT: &str = "/srv/data";

/// No process of the server outlives the first one, and that does not outlive the process that waits for it.
pub const NAMESPACES: [&str; 7] = [
    "--mount",
    "--propagation",
    "slave",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
];

/// Starts Ganesha as the first process: `sh -c START sh MOUNT CONFIGURATION LOG [OPTION...]`.
pub const START: &str = r#"
set -e
mount -t tmpfs none /run
mkdir -p /run/rpcbind /run/ganesha /run/lock
mount -t tmpfs none /srv
mkdir /srv/data
mount --bind "$1" /srv/data
rpcbind -f &
until [ -S /run/rpcbind.sock ]; do sleep 0.01; done
configuration=$2 log=$3
shift 3
exec ganesha.nfsd -F -f "$configuration" -L "$log" -p /run/ganesha.pid -N NIV_EVENT "$@"
"#;

/// The line in the log of a Ganesha that serves.
pub const SERVES: &str = "NFS SERVER INITIALIZED";

/// The text that `lockstep ganesha-config` prints for a node with the mount of a real server. `config` is the configuration
/// of the node, with its mount at `mount`, and `options` are those of the command.
pub fn configuration(program: &Path, config: &Path, mount: &Path, options: &[&str]) -> String {
    let text = fs::read_to_string(config).unwrap();
    let mount = mount.display().to_string();
    assert!(text.contains(&mount));
    let real = tempfile::NamedTempFile::new().unwrap();
    fs::write(real.path(), text.replace(&mount, EXPORT)).unwrap();
    let printed = Command::new(program)
        .args(["ganesha-config", "data", "--config"])
        .arg(real.path())
        .args(options)
        .output()
        .unwrap();
    assert!(printed.status.success(), "{printed:?}");
    String::from_utf8(printed.stdout).unwrap()
}
