//! The checker of prose finds headless subjects and leaves good sentences alone; the repository stays within its limits.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

/// Most findings for 100 comment lines and for 100 sentences of the documents. Both go down to 1 as the texts are
/// rewritten, and never up.
const LIMITS: [&str; 4] = ["--comments", "18.2", "--sentences", "9.7"];

/// Sentences with one finding each.
const HEADLESS: &[&str] = &[
    "Who waits for the disk is answered later.",
    "The node answers for what was sent.",
    "Nobody reads the table.",
    "The lock is free: whoever comes first takes the lock.",
    "The write is kept, and those who wait go on.",
    "The peer hears of all that was lost.",
    "A store is opened by somebody else.",
    "The node sends what it has; what is old stays.",
];

/// Sentences without one.
const GOOD: &[&str] = &[
    "A thread that waits for the disk is answered later.",
    "The node answers for the sent writes.",
    "No thread reads the table.",
    "The log says what happened.",
    "The core decides which operation is first.",
    "`who` prints the users, and `nobody` is one of them.",
];

fn check(arguments: &[&str], file: &Path) -> Output {
    Command::new("scripts/check-prose")
        .args(arguments)
        .arg(file)
        .output()
        .expect("perl belongs to every Debian")
}

/// What the checker says of a file with this text.
fn check_text(name: &str, text: &str) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(name);
    std::fs::File::create(&file)
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = check(&["--list"], &file);
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
    )
}

#[test]
fn each_headless_subject_is_found() {
    for sentence in HEADLESS {
        for (name, text) in [
            ("page.md", format!("# Head\n\n{sentence}\n")),
            ("code.rs", format!("/// {sentence}\nfn code() {{}}\n")),
            ("table.md", format!("| one | two |\n|---|---|\n| node | {sentence} |\n")),
        ] {
            let (is_good, said) = check_text(name, &text);
            assert!(!is_good && said.contains(" 1 headless of "), "{name}: {said}");
        }
    }
}

#[test]
fn good_sentences_are_left_alone() {
    let paragraphs = GOOD.join("\n\n");
    let comments: String = GOOD.iter().map(|line| format!("// {line}\n\n")).collect();
    let code = "```\nwhat nobody reads\n```\n\n    if what\n\n# What it is\n\n| what | who |\n|---|---|\n";
    let script = "#!/bin/sh\n# The script says what happened.\nwho | sort # of whom\n";
    for (name, text) in [
        ("page.md", paragraphs.as_str()),
        ("code.rs", &comments),
        ("code.md", code),
        ("setting.toml", script),
    ] {
        let (is_good, said) = check_text(name, text);
        assert!(is_good && !said.contains(&format!("{name}:")), "{name}: {said}");
    }
}

/// A subject may stand at the end of one comment line, and its verb on the next.
#[test]
fn a_comment_is_read_across_its_lines() {
    let (is_good, said) = check_text("code.rs", "// The node waits for\n// what the peer says.\n");
    assert!(!is_good && said.contains("comments: 1 headless of 2"), "{said}");
}

#[test]
fn limits_count_and_wrong_options_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.md");
    std::fs::write(&file, format!("{}\n\n{}\n", HEADLESS[0], GOOD[0])).unwrap();
    let code = |arguments: &[&str]| check(arguments, &file).status.code();
    assert_eq!(code(&["--sentences", "50"]), Some(0));
    assert_eq!(code(&["--sentences", "49.9"]), Some(1));
    assert_eq!(code(&["--sentences", "many"]), Some(2));
    assert_eq!(code(&["--verbose"]), Some(2));
}

#[test]
fn the_repository_is_within_its_limits() {
    let checked = Command::new("scripts/check-prose").args(LIMITS).output();
    let checked = checked.unwrap();
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success(),
        "{said}\n`scripts/check-prose --list FILE` shows the findings"
    );
    assert!(said.contains("comments: ") && said.contains("sentences: "), "{said}");
}
