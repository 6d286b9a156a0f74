//! The workspace as parsed sources: each crate's tree of modules, without code under `#[cfg(test)]`.
//!
//! Invariants: only modules that a crate's root reaches by `mod` belong to the crate; an inline module is a module of its
//! own with the file of its parent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use syn::Item;

use crate::without_tests::{is_test_only, remove_tests};

/// Folders in `crates/` that the program does not ship.
const NOT_PRODUCT: &[&str] = &["sim", "lossy", "model", "kv_bench", "playground", "testbed"];

/// Sources of the workspace, by path.
pub struct Workspace {
    /// All Rust files: path below the root of the repository, and text.
    pub texts: BTreeMap<String, String>,
    /// One for each `lib.rs` and `main.rs`.
    pub crates: Vec<Crate>,
}

/// A crate: the modules below one `lib.rs` or `main.rs`.
pub struct Crate {
    /// Folder of the package: `driver` for `crates/driver`, `src` for the program.
    pub folder: String,
    /// The root comes first.
    pub modules: Vec<Module>,
}

/// One module of a crate.
pub struct Module {
    /// Names from the root to the module; empty for the root.
    pub path: Vec<String>,
    /// Path of the module's file below the root of the repository.
    pub file: String,
    /// Position of the parent in [`Crate::modules`].
    pub parent: Option<usize>,
    /// Names and positions of the modules inside.
    pub children: BTreeMap<String, usize>,
    /// Items of the module. Items of inline modules are found in the inline modules only.
    pub items: Vec<Item>,
}

impl Workspace {
    /// Reads all Rust files below `root`.
    pub fn read(root: &Path) -> Self {
        let mut texts = BTreeMap::new();
        for folder in ["src", "tests", "benches", "crates"] {
            add_files(root, folder, &mut texts);
        }
        assert!(
            texts.len() > 100,
            "run the test in the root of the repository"
        );
        Self::from_texts(texts)
    }

    /// Takes the sources of a small example.
    pub fn example(files: &[(&str, &str)]) -> Self {
        let owned = |&(path, text): &(&str, &str)| (path.to_owned(), text.to_owned());
        Self::from_texts(files.iter().map(owned).collect())
    }

    fn from_texts(texts: BTreeMap<String, String>) -> Self {
        let crates = texts.keys().filter_map(|path| Crate::read(path, &texts));
        Self {
            crates: crates.collect(),
            texts,
        }
    }

    /// The crates that are shipped.
    pub fn product(&self) -> impl Iterator<Item = &Crate> {
        let is_product = |it: &&Crate| !NOT_PRODUCT.contains(&it.folder.as_str());
        self.crates.iter().filter(is_product)
    }
}

fn add_files(root: &Path, folder: &str, texts: &mut BTreeMap<String, String>) {
    let Ok(entries) = fs::read_dir(root.join(folder)) else {
        return;
    };
    for entry in entries {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            add_files(root, &path, texts);
        } else if is_rust(&path) {
            texts.insert(path, fs::read_to_string(entry.path()).unwrap());
        }
    }
}

/// Whether a path names a Rust file.
pub fn is_rust(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|it| it == "rs")
}

/// The crate's folder and the rest of the path: `driver` and `peer/dial.rs` for `crates/driver/src/peer/dial.rs`,
/// `src` and `main.rs` for `src/main.rs`. `None` outside the folders of sources.
pub fn split_path(path: &str) -> Option<(&str, &str)> {
    match path.strip_prefix("crates/") {
        Some(below) => below.split_once("/src/"),
        None => path.strip_prefix("src/").map(|rest| ("src", rest)),
    }
}

/// The folder of the package to which a file belongs: `driver` for `crates/driver/tests/pair.rs`. For a file of the program the first
/// folder of the path.
pub fn folder_of(path: &str) -> &str {
    let below = path.strip_prefix("crates/").unwrap_or(path);
    below.split_once('/').map_or(below, |(folder, _)| folder)
}

impl Crate {
    fn read(root: &str, texts: &BTreeMap<String, String>) -> Option<Self> {
        let (folder, rest) = split_path(root)?;
        if rest != "lib.rs" && rest != "main.rs" {
            return None;
        }
        let mut it = Self {
            folder: folder.to_owned(),
            modules: Vec::new(),
        };
        let module = Module {
            path: Vec::new(),
            file: root.to_owned(),
            parent: None,
            children: BTreeMap::new(),
            items: Vec::new(),
        };
        let items = parse(root, texts)?;
        it.add(module, items, texts);
        Some(it)
    }

    /// Adds a module and the modules in `items`; returns the position.
    fn add(&mut self, module: Module, items: Vec<Item>, texts: &BTreeMap<String, String>) -> usize {
        let position = self.modules.len();
        let (root, _) = self
            .modules
            .first()
            .unwrap_or(&module)
            .file
            .rsplit_once('/')
            .unwrap();
        let root = root.to_owned();
        self.modules.push(module);
        for item in items {
            let Item::Mod(inner) = item else {
                self.modules[position].items.push(item);
                continue;
            };
            let name = inner.ident.to_string();
            let path = [self.modules[position].path.clone(), vec![name.clone()]].concat();
            let place = format!("{root}/{}", path.join("/"));
            let (file, items) = match inner.content {
                Some((_, items)) => (self.modules[position].file.clone(), items),
                None => [format!("{place}.rs"), format!("{place}/mod.rs")]
                    .into_iter()
                    .find_map(|file| parse(&file, texts).map(|items| (file, items)))
                    .unwrap_or_else(|| panic!("no file for module {place}")),
            };
            let module = Module {
                path,
                file,
                parent: Some(position),
                children: BTreeMap::new(),
                items: Vec::new(),
            };
            let child = self.add(module, items, texts);
            self.modules[position].children.insert(name, child);
        }
        position
    }

    /// Whether a module stands in a file of its own, or is the root.
    pub fn has_own_file(&self, module: &Module) -> bool {
        module
            .parent
            .is_none_or(|it| self.modules[it].file != module.file)
    }
}

/// The items of a file, without tests.
fn parse(file: &str, texts: &BTreeMap<String, String>) -> Option<Vec<Item>> {
    let text = texts.get(file)?;
    let mut parsed = syn::parse_file(text).unwrap_or_else(|e| panic!("{file}: {e}"));
    if is_test_only(&parsed.attrs) {
        parsed.items.clear();
    }
    remove_tests(&mut parsed);
    Some(parsed.items)
}
