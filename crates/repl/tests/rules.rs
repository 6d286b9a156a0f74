//! The code cites the rules of `docs/protocol/rules.md` by their numbers: every rule, and none that is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Names the rules, but keeps none of them.
const ABOUT_THE_CODE: [&str; 2] = ["crates/sim/", "crates/types/src/deliberate.rs"];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The numbers of the rules, as the page gives them: `**P7. `.
fn rules() -> Result<BTreeSet<u32>, Box<dyn Error>> {
    let page = fs::read_to_string(top().join("docs/protocol/rules.md"))?;
    let number = |line: &str| line.strip_prefix("**P")?.split_once(". ")?.0.parse().ok();
    Ok(page.lines().filter_map(number).collect())
}

/// The numbers that a text cites: words like `P7`.
fn cited(text: &str) -> BTreeSet<u32> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let number = |word: &str| {
        let digits = word.strip_prefix('P')?;
        digits
            .chars()
            .all(|c| c.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    words.filter_map(number).collect()
}

/// Every Rust file below a directory.
fn sources(directory: &Path, into: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

/// What each file of the program cites, by its path from the top.
fn citations() -> Result<BTreeMap<String, BTreeSet<u32>>, Box<dyn Error>> {
    let top = top();
    let mut files = Vec::new();
    sources(&top.join("src"), &mut files)?;
    for room in fs::read_dir(top.join("crates"))? {
        sources(&room?.path().join("src"), &mut files)?;
    }
    let mut found = BTreeMap::new();
    for file in files {
        let name = file.strip_prefix(&top)?.display().to_string();
        found.insert(name, cited(&fs::read_to_string(&file)?));
    }
    Ok(found)
}

#[test]
fn every_rule_is_cited_where_the_code_keeps_it() -> Result<(), Box<dyn Error>> {
    let mut left = rules()?;
    assert!(left.len() >= 15, "the page names its rules otherwise now");
    for (file, cited) in citations()? {
        if !ABOUT_THE_CODE.iter().any(|about| file.starts_with(about)) {
            left.retain(|rule| !cited.contains(rule));
        }
    }
    assert!(
        left.is_empty(),
        "no code says that it keeps these: {left:?}"
    );
    Ok(())
}

#[test]
fn no_code_cites_a_rule_that_is_not_there() -> Result<(), Box<dyn Error>> {
    let rules = rules()?;
    for (file, cited) in citations()? {
        let unknown: Vec<_> = cited.difference(&rules).collect();
        assert!(unknown.is_empty(), "{file} cites {unknown:?}");
    }
    Ok(())
}
