//! The configuration: any text is read, or is refused with line, key, cause and cure.

use std::fmt::Write;
use std::path::Path;

use lockstep_testbed::chance::Chance;
use lockstepfs::config::{
    Choice, ConfigError, DatastoreConfig, Encryption, NodeConfig, OnPeerLoss, Role, parse,
};

use crate::bytes;
use crate::run::cases;

const GOOD: &str = r#"# a node
[node]
name = "a"
identity = "/etc/lockstep/a"
listen = "10.0.0.1:7400"
control = "/run/lockstep/a.sock"

[[datastore]]
name = "alpha"
uuid = "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001"
store = "/var/lib/lockstep/alpha"
mount = "/srv/alpha"
role = "primary"
durability = "posix"
on_peer_loss = "continue"
pause_limit_ms = 10000
peer_timeout_ms = 3000
answer_limit_ms = 60000
disk_stall_limit_ms = 30000
flap_wait_max_ms = 60000
resync_bytes_per_second = 50000000
resync_pause_above_ms = 20
fuse_threads = 8

[datastore.peer]
address = "10.0.0.2:7400"
fingerprint = "SHA256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
encryption = "on"

[[datastore]]
name = "beta"
uuid = "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a002"
store = "/var/lib/lockstep/beta"
mount = "/srv/beta"
role = "secondary"
peer = { address = "node-b.example:7400", fingerprint = "SHA256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" }
"#;

/// Replacements for a value, right and wrong ones.
const VALUES: &[&str] = &[
    "0",
    "-1",
    "+0",
    "1",
    "64",
    "200",
    "600000",
    "600001",
    "9223372036854775808",
    "0xffff_ffff",
    "0o17",
    "0b1",
    "340282366920938463463374607431768211456",
    "-170141183460469231731687303715884105729",
    "1e999",
    "nan",
    "-inf",
    "0.5",
    "true",
    "1979-05-27T07:32:00Z",
    "07:32:00",
    "\"\"",
    "''",
    "\"a\"",
    "\"\\u0000\"",
    "\"\\U0010FFFF\"",
    "\"/\"",
    "\"//x//y/./\"",
    "\"/a/../b\"",
    "\"/run/\\n\"",
    "\"\u{202e}\u{feff}\u{1f980}\"",
    "\"/\u{fffd}\"",
    "\"\"\"\n\n/x\"\"\"",
    "[]",
    "[[]]",
    "[1, \"a\"]",
    "{}",
    "{ a = { b = {} } }",
    "\"on\"",
    "\"off\"",
    "\"freeze\"",
    "\"always\"",
    "\"secondary\"",
    "\"ON\"",
    "\"[::1]:1\"",
    "\"[::1%1]:7400\"",
    "\"10.0.0.1:0\"",
    "\"10.0.0.1:7400\"",
    "\"x:65536\"",
    "\"::1:7400\"",
    "\"6F0E2F5E58B64C3B8A556C4A36C3A003\"",
    "\"{6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a003}\"",
    "\"00000000-0000-0000-0000-000000000000\"",
    "\"/var/lib/lockstep/alpha\"",
    "\"/var/lib/lockstep/alpha/x\"",
];

#[test]
fn any_text_is_read_or_refused_with_cause_and_cure() {
    cases(
        "configuration::any_text_is_read_or_refused_with_cause_and_cure",
        6000,
        |chance| {
            let text = text(chance);
            match parse(&text, Path::new("/etc/node.toml")) {
                Ok(config) => read_again(&config),
                Err(error) => has_cause_and_cure(&error, &text),
            }
        },
    );
}

fn text(chance: &mut Chance) -> String {
    match chance.within(0..20) {
        0 => String::from_utf8_lossy(&bytes::random(chance, 100_000)).into_owned(),
        1 => soup(chance),
        2 => deep(chance),
        3..7 => {
            let mut text = GOOD.as_bytes().to_vec();
            bytes::mutate_often(chance, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        }
        _ => {
            let mut lines: Vec<String> = GOOD.lines().map(str::to_owned).collect();
            for _ in 0..chance.within(1..4) {
                change_a_line(chance, &mut lines);
            }
            lines.join("\n")
        }
    }
}

/// Pieces of TOML in random order.
fn soup(chance: &mut Chance) -> String {
    let pieces = [
        "[",
        "]",
        "[[",
        "]]",
        "=",
        "\n",
        "\"",
        "'",
        "\"\"\"",
        "#",
        ".",
        ",",
        "{",
        "}",
        "node",
        "datastore",
        "peer",
        "name",
        "uuid",
        "\\u",
        "\r\n",
        "\u{feff}",
        "1",
        "-",
        "e9",
        "\0",
        " ",
        "\t",
    ];
    let count = chance.within(0..200);
    (0..count).map(|_| *chance.pick(&pieces)).collect()
}

/// Values nested so deep that they could exhaust a stack.
fn deep(chance: &mut Chance) -> String {
    let depth = *chance.pick(&[10, 79, 80, 81, 128, 1000, 100_000]);
    let (open, close) = *chance.pick(&[("[", "]"), ("{a=", "}"), ("a.", "")]);
    let (open, close) = (open.repeat(depth), close.repeat(depth));
    match chance.within(0..3) {
        0 => format!("node = {open}1{close}\n"),
        1 => format!("{GOOD}\n{open}b = 1\n"),
        _ => format!("[{}node]\nname = \"a\"\n", "a.".repeat(depth)),
    }
}

fn change_a_line(chance: &mut Chance, lines: &mut Vec<String>) {
    if lines.is_empty() {
        return;
    }
    let at = bytes::index(chance, lines.len());
    match chance.within(0..8) {
        0 => drop(lines.remove(at)),
        1 => {
            let to = bytes::index(chance, lines.len());
            lines.swap(at, to);
        }
        2 => lines.insert(at, lines[at].clone()),
        3 => {
            let mut line = std::mem::take(&mut lines[at]).into_bytes();
            bytes::mutate(chance, &mut line);
            lines[at] = String::from_utf8_lossy(&line).into_owned();
        }
        _ => {
            let value = (*chance.pick(VALUES)).to_owned();
            if let Some((key, _)) = lines[at].split_once('=') {
                lines[at] = format!("{key}= {value}");
            }
        }
    }
}

fn has_cause_and_cure(error: &ConfigError, text: &str) {
    let ConfigError::Invalid { problems, .. } = error else {
        panic!("{error}");
    };
    assert!(!problems.is_empty());
    assert!(problems.is_sorted_by_key(|problem| problem.line));
    for problem in problems {
        let lines = text.matches('\n').count() + 1;
        assert!((1..=lines).contains(&problem.line), "{problem:?}");
        for part in [&problem.key, &problem.cause, &problem.cure] {
            assert!(!part.trim().is_empty(), "{problem:?}");
        }
    }
    let message = error.to_string();
    assert!(
        message.contains("cause: ") && message.contains("cure: "),
        "{message}"
    );
    let hidden = |c: char| c.is_control() && c != '\n';
    assert!(!message.contains(hidden), "{message:?}");
    assert!(message.len() < 200_000, "{} bytes", message.len());
}

/// Writes the configuration out and checks that reading it again gives the same configuration.
fn read_again(config: &NodeConfig) {
    let text = written(config);
    let again = parse(&text, Path::new("/etc/again.toml"));
    assert_eq!(
        again.unwrap_or_else(|error| panic!("{error}\n{text}")),
        *config
    );
}

fn written(config: &NodeConfig) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let path = |path: &Path| quoted(path.to_str().unwrap());
    let mut text = format!(
        "[node]\nname = {}\ncontrol = {}\n",
        quoted(&config.name),
        path(&config.control)
    );
    if let Some(link) = &config.link {
        let identity = path(&link.identity);
        writeln!(text, "identity = {identity}\nlisten = \"{}\"", link.listen).unwrap();
    }
    for datastore in &config.datastores {
        let (store, mount) = (path(&datastore.store), path(&datastore.mount));
        writeln!(
            text,
            "[[datastore]]\nname = {}\nuuid = \"{}\"\nstore = {store}\nmount = {mount}",
            quoted(&datastore.name),
            datastore.uuid
        )
        .unwrap();
        write_rest(&mut text, datastore);
    }
    text
}

fn write_rest(text: &mut String, datastore: &DatastoreConfig) {
    let role: Role = datastore.role;
    let loss: OnPeerLoss = datastore.policies.on_peer_loss;
    let stall = datastore.policies.disk_stall_limit.get();
    let resync = datastore.policies.resync;
    writeln!(
        text,
        "role = \"{}\"\ndurability = \"{}\"\non_peer_loss = \"{}\"\npause_limit_ms = {}\n\
         peer_timeout_ms = {}\nanswer_limit_ms = {}\ndisk_stall_limit_ms = {}\n\
         flap_wait_max_ms = {}\nresync_bytes_per_second = {}\nresync_pause_above_ms = {}\n\
         fuse_threads = {}",
        role.word(),
        datastore.policies.durability.word(),
        loss.word(),
        datastore.pause_limit.as_millis(),
        datastore.peer_timeout.as_millis(),
        datastore.answer_limit.as_millis(),
        stall.map_or(0, |limit| limit.as_millis()),
        datastore.policies.flap_wait_max.get().as_millis(),
        resync.bytes_per_second.map_or(0, std::num::NonZeroU64::get),
        resync.pause_above.unwrap_or_default().as_millis(),
        datastore.fuse_threads
    )
    .unwrap();
    if let Some(peer) = &datastore.peer {
        let encryption: Encryption = peer.encryption;
        writeln!(
            text,
            "[datastore.peer]\naddress = \"{}\"\nfingerprint = \"{}\"\nencryption = \"{}\"",
            peer.address,
            peer.fingerprint,
            encryption.word()
        )
        .unwrap();
    }
}
