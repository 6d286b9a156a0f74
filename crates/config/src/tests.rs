//! Every kind of mistake in a configuration, and its message.

mod drafts;
mod limits;
mod reference;
mod witness;

use std::time::Duration;

use super::*;

const FINGERPRINT: &str = "SHA256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A complete file, line by line, that tests change in one place.
fn good() -> String {
    format!(
        r#"[node]
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

[datastore.peer]
address = "10.0.0.2:7400"
fingerprint = "{FINGERPRINT}"
encryption = "on"

[[datastore]]
name = "beta"
uuid = "6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a002"
store = "/var/lib/lockstep/beta"
mount = "/srv/beta"
role = "primary"
"#
    )
}

fn read(text: &str) -> Result<NodeConfig, ConfigError> {
    parse(text, Path::new("/etc/node.toml"))
}

fn problems(text: &str) -> Vec<Problem> {
    match read(text) {
        Err(ConfigError::Invalid { problems, .. }) => problems,
        other => panic!("not refused: {other:?}"),
    }
}

/// The only mistake of the good file after one replacement.
fn only_problem(from: &str, to: &str) -> Problem {
    let good = good();
    assert!(good.contains(from), "{from} is not in the file");
    let mut found = problems(&good.replacen(from, to, 1));
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[track_caller]
fn refused(from: &str, to: &str, line: usize, key: &str, cause: &str, cure: &str) {
    let problem = only_problem(from, to);
    assert_eq!(
        (problem.line, problem.key.as_str()),
        (line, key),
        "{problem}"
    );
    assert!(problem.cause.contains(cause), "{problem}");
    assert!(problem.cure.contains(cure), "{problem}");
}

#[test]
fn a_good_file_is_read_whole() {
    let config = read(&good()).unwrap();
    assert_eq!(config.name, "a");
    let link = config.link.as_ref().unwrap();
    assert_eq!(link.listen, "10.0.0.1:7400".parse().unwrap());
    let alpha = config.datastore("alpha").unwrap();
    assert_eq!(alpha.role, Role::Primary);
    assert_eq!(
        alpha.peer.as_ref().unwrap().address.to_string(),
        "10.0.0.2:7400"
    );
    assert_eq!(
        alpha.peer.as_ref().unwrap().fingerprint.to_string(),
        FINGERPRINT
    );
}

#[test]
fn a_missing_key_has_its_default() {
    let config = read(&good()).unwrap();
    let beta = config.datastore("beta").unwrap();
    assert_eq!(beta.policies.durability, Durability::Posix);
    assert_eq!(beta.policies.on_peer_loss, OnPeerLoss::Continue);
    assert_eq!(beta.policies.on_power_loss, OnPowerLoss::Wait);
    assert_eq!(beta.policies.standby, Standby::Erofs);
    assert_eq!(beta.pause_limit, settings::PAUSE_LIMIT.default_time());
    assert_eq!(beta.peer_timeout, settings::PEER_TIMEOUT.default_time());
    assert_eq!(beta.answer_limit, settings::ANSWER_LIMIT.default_time());
    let stall = beta.policies.disk_stall_limit.get();
    assert_eq!(stall, Some(Duration::from_secs(30)));
    assert_eq!(beta.policies.flap_wait_max.get(), Duration::from_secs(60));
    assert_eq!(beta.fuse_threads, FUSE_THREADS_DEFAULT);
    assert_eq!(beta.peer, None);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    refused(
        "durability",
        "durabilty",
        13,
        "durabilty",
        "no such key",
        "`durability`",
    );
    refused(
        "encryption",
        "encrypted",
        20,
        "encrypted",
        "no such key",
        "`encryption`",
    );
    refused(
        "durability = \"posix\"",
        "zzz = 1",
        13,
        "zzz",
        "no such key",
        "the keys here are: name",
    );
    refused(
        "[node]",
        "colour = 1\n[node]",
        1,
        "colour",
        "no such key",
        "node, datastore",
    );
}

#[test]
fn a_wrong_word_is_refused_with_the_valid_words() {
    refused(
        "\"primary\"",
        "\"primry\"",
        12,
        "role",
        "\"primry\"",
        "did you mean \"primary\"",
    );
    refused(
        "\"posix\"",
        "\"sometimes\"",
        13,
        "durability",
        "sometimes",
        "\"posix\" or \"always\"",
    );
    refused(
        "pause_limit_ms = 10000",
        "standby = \"rofs\"",
        15,
        "standby",
        "rofs",
        "did you mean \"erofs\"",
    );
    refused(
        "\"on\"",
        "true",
        20,
        "encryption",
        "a boolean",
        "\"on\" or \"off\"",
    );
}

#[test]
fn a_number_that_is_none_or_out_of_bounds_is_refused() {
    refused(
        "= 10000",
        "= \"10s\"",
        15,
        "pause_limit_ms",
        "a string",
        "whole number from 0 to 600000",
    );
    refused(
        "= 10000",
        "= 600001",
        15,
        "pause_limit_ms",
        "600001",
        "600000",
    );
    refused("= 10000", "= -1", 15, "pause_limit_ms", "-1", "from 0");
    refused(
        "pause_limit_ms = 10000",
        "fuse_threads = 0",
        15,
        "fuse_threads",
        "0",
        "from 1 to 64",
    );
    refused(
        "pause_limit_ms = 10000",
        "peer_timeout_ms = 1",
        15,
        "peer_timeout_ms",
        "1",
        "from 200",
    );
    refused(
        "pause_limit_ms = 10000",
        "answer_limit_ms = 0",
        15,
        "answer_limit_ms",
        "0",
        "from 1000 to 600000",
    );
    for wrong in ["1", "999", "600001"] {
        for key in ["disk_stall_limit_ms", "flap_wait_max_ms"] {
            refused(
                "pause_limit_ms = 10000",
                &format!("{key} = {wrong}"),
                15,
                key,
                wrong,
                "to 600000",
            );
        }
    }
}

#[test]
fn a_wrong_name_or_address_is_refused() {
    refused(
        "name = \"a\"",
        "name = \"a b\"",
        2,
        "name",
        "a b",
        "letters",
    );
    refused(
        "name = \"a\"",
        "name = 7",
        2,
        "name",
        "an integer",
        "double quotes",
    );
    refused(
        "6c4a36c3a001",
        "6c4a36c3a",
        9,
        "uuid",
        "not a UUID",
        "lockstep init",
    );
    refused(
        "\"10.0.0.1:7400\"",
        "\"10.0.0.1\"",
        4,
        "listen",
        "10.0.0.1",
        "10.0.0.1:7400",
    );
    refused("10.0.0.1:7400", "10.0.0.1:0", 4, "listen", "port 0", "7400");
    refused(
        "10.0.0.2:7400",
        "10.0.0.2",
        18,
        "address",
        "10.0.0.2",
        "10.0.0.2:7400",
    );
    refused(
        FINGERPRINT,
        "SHA256:abc",
        19,
        "fingerprint",
        "SHA256:abc",
        "lockstep init",
    );
}

#[test]
fn a_wrong_path_is_refused() {
    refused(
        "/srv/alpha",
        "srv/alpha",
        11,
        "mount",
        "not an absolute path",
        "beginning with `/`",
    );
    refused("/srv/alpha", "/srv/../alpha", 11, "mount", "..", "directly");
    let long = format!("/run/{}.sock", "x".repeat(120));
    refused(
        "/run/lockstep/a.sock",
        &long,
        5,
        "control",
        "130 bytes",
        "shorter",
    );
}

#[test]
fn a_missing_key_is_named_with_an_example() {
    refused(
        "role = \"primary\"\ndur",
        "dur",
        7,
        "role",
        "missing",
        "\"secondary\" on the other",
    );
    refused(
        "uuid = \"6f0e2f5e-58b6-4c3b-8a55-6c4a36c3a001\"\n",
        "",
        7,
        "uuid",
        "missing",
        "uuid =",
    );
    refused(
        "listen = \"10.0.0.1:7400\"\n",
        "",
        1,
        "listen",
        "missing",
        "10.0.0.1:7400",
    );
    refused(
        "address = \"10.0.0.2:7400\"\n",
        "",
        17,
        "address",
        "missing",
        "10.0.0.2:7400",
    );
}

#[test]
fn an_empty_file_names_the_sections_it_lacks() {
    let found = problems("");
    let keys: Vec<_> = found.iter().map(|problem| problem.key.as_str()).collect();
    assert_eq!(keys, ["node", "datastore"]);
}

#[test]
fn sections_of_the_wrong_shape_are_refused() {
    let cut = good();
    let (_, datastores) = cut.split_once("\n\n").unwrap();
    let found = problems(&format!("node = 3\n{datastores}"));
    assert!(
        found
            .iter()
            .any(|p| p.key == "node" && p.cause.contains("table")),
        "{found:?}"
    );
    let found = problems("[node]\nname = \"a\"\ncontrol = \"/c\"\n[datastore]\nname = \"x\"\n");
    assert!(
        found.iter().any(|p| p.cure.contains("double brackets")),
        "{found:?}"
    );
}

#[test]
fn broken_toml_is_refused_by_line() {
    let found = problems("[node]\nname = a b\n");
    assert_eq!((found[0].line, found[0].key.as_str()), (2, "syntax"));
    let found = problems("[node]\nname = \"a\"\nname = \"b\"\n");
    assert_eq!(found[0].line, 3, "{found:?}");
}

#[test]
fn duplicates_are_refused_at_the_line_of_the_second() {
    refused("\"beta\"", "\"alpha\"", 23, "name", "line 8", "own name");
    refused("3a002", "3a001", 24, "uuid", "line 9", "own uuid");
    refused(
        "lockstep/beta",
        "lockstep/alpha",
        25,
        "store",
        "same as the store",
        "of its own",
    );
    refused(
        "/srv/beta",
        "/srv/alpha/",
        26,
        "mount",
        "same as the mount",
        "of its own",
    );
}

#[test]
fn directories_inside_each_other_are_refused() {
    refused(
        "/srv/beta",
        "/srv/alpha/beta",
        26,
        "mount",
        "lies inside the mount",
        "inside another",
    );
    refused(
        "lockstep/beta",
        "lockstep",
        25,
        "store",
        "contains the store",
        "inside another",
    );
    refused(
        "/run/lockstep/a.sock",
        "/srv/beta/a.sock",
        26,
        "mount",
        "contains the control",
        "inside",
    );
}

#[test]
fn roles_and_peers_must_fit() {
    let lonely = good().trim_end().trim_end_matches("\"primary\"").to_owned() + "\"secondary\"";
    let found = problems(&lonely);
    assert_eq!((found[0].line, found[0].key.as_str()), (27, "role"));
    refused(
        "10.0.0.2:7400",
        "10.0.0.1:7400",
        18,
        "address",
        "this node itself",
        "other node",
    );
}

#[test]
fn datastores_of_one_node_have_the_same_encryption() {
    let peer = |encryption: &str| {
        format!(
            "\n[datastore.peer]\naddress = \"10.0.0.3:7400\"\nfingerprint = \"{FINGERPRINT}\"\n\
             {encryption}"
        )
    };
    read(&(good() + &peer(""))).unwrap();
    let found = problems(&(good() + &peer("encryption = \"off\"\n")));
    assert_eq!(found.len(), 1, "{found:#?}");
    let place = (found[0].line, found[0].key.as_str());
    assert_eq!(place, (32, "encryption"), "{}", found[0]);
    let cause = "it is \"off\" here, but \"on\" in the [datastore.peer] at line 20";
    assert_eq!(found[0].cause, cause);
    // If the key is missing, its default counts, and the message names the section.
    let off = good().replace("encryption = \"on\"", "encryption = \"off\"");
    let found = problems(&(off + &peer("")));
    assert_eq!((found.len(), found[0].line), (1, 29), "{found:#?}");
}

#[test]
fn all_mistakes_are_reported_at_once_in_order() {
    let text = good()
        .replace("\"primary\"\ndurability", "\"boss\"\ndurability")
        .replace("10000", "-5")
        .replace("/srv/beta", "beta")
        .replace("name = \"a\"", "nme = \"a\"");
    let found = problems(&text);
    let lines: Vec<_> = found.iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [1, 2, 12, 15, 26], "{found:#?}");
}

#[test]
fn the_error_names_file_line_key_cause_and_cure() {
    let text = good().replace("\"posix\"", "\"posx\"");
    let error = read(&text).unwrap_err().to_string();
    for part in [
        "/etc/node.toml:13:",
        "durability in [[datastore]] \"alpha\"",
        "cause: \"posx\" is not a valid value for this key",
        "cure:  write \"posix\" or \"always\"; did you mean \"posix\"?",
    ] {
        assert!(error.contains(part), "{part} is not in:\n{error}");
    }
}

#[test]
fn a_file_that_cannot_be_read_says_what_to_do() {
    let missing = tempfile::tempdir().unwrap().path().join("none.toml");
    let error = load(&missing).unwrap_err().to_string();
    assert!(
        error.contains("none.toml") && error.contains("lockstep init"),
        "{error}"
    );
}

#[test]
fn a_refused_peer_does_not_hide_other_mistakes() {
    let text = good()
        .replace(FINGERPRINT, "")
        .replace("/srv/beta", "/srv/alpha");
    let lines: Vec<_> = problems(&text).iter().map(|problem| problem.line).collect();
    assert_eq!(lines, [19, 26]);
}

#[test]
fn a_key_that_slipped_into_a_lower_section_is_sent_to_its_place() {
    let text = good().replace("[datastore.peer]", "[datastore.peer]\nfuse_threads = 4");
    let found = problems(&text);
    let [problem] = found.as_slice() else {
        panic!("{found:#?}");
    };
    assert!(
        problem.cause.contains("belongs to [[datastore]]"),
        "{problem:?}"
    );
}

#[test]
fn the_configuration_of_a_witness_is_told_from_that_of_a_node() {
    let of_witness = "[witness]\nlisten = \"10.0.0.3:7400\"\n[[node]]\nname = \"a\"\n";
    let error = read(of_witness).unwrap_err().to_string();
    assert!(
        error.contains("this is the configuration of a witness"),
        "{error}"
    );
    let error = witness_server::read(&good()).unwrap_err();
    assert!(
        format!("{error:?}").contains("this is the configuration of a node"),
        "{error:?}"
    );
}

#[test]
fn a_file_that_is_no_configuration_is_refused_in_few_words() {
    let noise = "a\r\u{7}b = = \n".repeat(4000);
    let unknown: Vec<String> = (0..4000).map(|key| format!("key{key} = 1")).collect();
    for text in [noise, unknown.join("\n")] {
        let error = read(&text).unwrap_err();
        let ConfigError::Invalid { problems, more, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(problems.len(), LISTED_MAX);
        let said = error.to_string();
        let (total, more) = (
            LISTED_MAX + more,
            format!("and {more} more, which are listed when"),
        );
        assert!(
            said.contains(&format!("has {total} mistakes")) && total >= 4000,
            "{said}"
        );
        assert!(said.contains(&more), "{said}");
        assert!(said.len() < 20_000, "{} bytes", said.len());
    }
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("node.toml");
    let padding = usize::try_from(CONFIG_BYTES_MAX).unwrap() - good().len();
    std::fs::write(&path, good() + &" ".repeat(padding)).unwrap();
    load(&path).unwrap();
    std::fs::write(&path, good() + &" ".repeat(padding + 1)).unwrap();
    let error = load(&path).unwrap_err().to_string();
    assert!(
        error.contains("larger than 262144 bytes") && error.contains("cure:"),
        "{error}"
    );
}

#[test]
fn control_characters_are_shown_as_text() {
    let good = good().replacen("name = \"a\"", "\"na\\u001bme\\n\" = 1", 1);
    let said = read(&good).unwrap_err().to_string();
    assert!(said.contains("na\\u{1b}me\\n in [node]"), "{said}");
}
