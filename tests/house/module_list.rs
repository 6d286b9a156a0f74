//! Rule: `docs/modules.md` lists each source file with the first sentence of its head. This test makes the page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::Finding;
use crate::architecture::short;
use crate::workspace::{Crate, Workspace};

/// Where the page stands.
pub const PAGE: &str = "docs/modules.md";

const HEAD: &str = "# Modules

Each source file with the first sentence of its head. Names leave out `crates/` and `src/`: `driver/peer/dial.rs` is
`crates/driver/src/peer/dial.rs`. [ARCHITECTURE.md](ARCHITECTURE.md) says how the crates work together.

`tests/house.rs` makes this page and fails while the page differs from the code. This command writes the page anew:

    LOCKSTEP_WRITE_DOCS=1 cargo test --test house modules
";

/// Files without a head, which the page could say nothing about.
pub fn without_head(workspace: &Workspace) -> Vec<Finding> {
    let mut found = Vec::new();
    for krate in &workspace.crates {
        let silent = files(krate).filter(|it| first_sentence(&workspace.texts[*it]).is_empty());
        found.extend(silent.map(|it| Finding::new(&krate.folder, format!("{it} has no head"))));
    }
    found
}

/// The page as the present sources make it.
pub fn page(workspace: &Workspace) -> String {
    let mut page = HEAD.to_owned();
    let shipped: Vec<&str> = workspace.product().map(|it| it.folder.as_str()).collect();
    let (product, others): (Vec<&Crate>, Vec<&Crate>) = workspace
        .crates
        .iter()
        .partition(|it| shipped.contains(&it.folder.as_str()));
    page.push_str("\n# The product\n");
    add_crates(&mut page, workspace, &product);
    page.push_str("\n# Not shipped: the simulator and other tools of the tests\n");
    add_crates(&mut page, workspace, &others);
    page
}

fn add_crates(page: &mut String, workspace: &Workspace, crates: &[&Crate]) {
    let mut folders: BTreeMap<&str, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
    for krate in crates {
        let of_crate = folders.entry(&krate.folder).or_default();
        for file in files(krate) {
            let name = short(file);
            let folder = name
                .rsplit_once('/')
                .map_or(String::new(), |it| it.0.to_owned());
            let sentence = first_sentence(&workspace.texts[file]);
            of_crate.entry(folder).or_default().insert(name, sentence);
        }
    }
    for (krate, of_crate) in folders {
        let place = if krate == "src" {
            krate.to_owned()
        } else {
            format!("crates/{krate}")
        };
        write!(page, "\n## `{place}`\n").unwrap();
        for (folder, rows) in of_crate {
            if folder.contains('/') {
                write!(page, "\n### `{folder}/`\n").unwrap();
            }
            page.push_str("\n| file | content |\n|---|---|\n");
            for (name, sentence) in rows {
                writeln!(page, "| `{name}` | {sentence} |").unwrap();
            }
        }
    }
}

/// The files of a crate, without those that only its tests have.
fn files(krate: &Crate) -> impl Iterator<Item = &str> {
    let own = krate.modules.iter().filter(|it| krate.has_own_file(it));
    own.map(|it| it.file.as_str())
}

/// The first sentence of the comment at the top of a file, without its full stop and without the brackets of links.
pub fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|it| it.strip_prefix("//!"));
    let paragraph: Vec<&str> = lines
        .map(str::trim)
        .take_while(|it| !it.is_empty())
        .collect();
    let paragraph = paragraph.join(" ");
    let sentence = paragraph.split(". ").next().unwrap_or_default();
    let sentence = sentence
        .replace("[`", "`")
        .replace("`]", "`")
        .replace('|', "\\|");
    sentence.trim_end_matches(['.', ':']).to_owned()
}
