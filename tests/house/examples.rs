//! Each rule on small sources: a bad one has the finding, a good one has none.

use crate::workspace::Workspace;
use crate::{
    Finding, architecture, circles, module_list, paths, signatures, sizes, surface, untested, words,
};

const LIB: &str = "crates/driver/src/lib.rs";

fn check_one(check: fn(&Workspace) -> Vec<Finding>, source: &str) -> Vec<String> {
    check_all(check, &[(LIB, source)])
}

fn check_all(check: fn(&Workspace) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    texts(check(&Workspace::example(files)))
}

fn texts(findings: Vec<Finding>) -> Vec<String> {
    findings.into_iter().map(|it| it.text).collect()
}

fn assert_one(found: &[String], parts: &[&str]) {
    assert_eq!(found.len(), 1, "{found:?}");
    for part in parts {
        assert!(found[0].contains(part), "{part:?} in {found:?}");
    }
}

fn methods(names: std::ops::Range<usize>) -> String {
    let methods = names.map(|it| format!("fn m{it}(&self) {{}}\n"));
    methods.collect::<Vec<_>>().concat()
}

#[test]
fn methods_are_counted_over_all_files() {
    let first = format!(
        "mod more; pub struct Big; impl Big {{ {} }}",
        methods(0..30)
    );
    let second = |number| format!("use super::Big; impl Big {{ {} }}", methods(30..number));
    let more = "crates/driver/src/more.rs";
    let found = check_all(sizes::check_types, &[(LIB, &first), (more, &second(51))]);
    assert_one(&found, &["lib.rs Big: 51 methods", "more.rs 21"]);
    assert!(check_all(sizes::check_types, &[(LIB, &first), (more, &second(50))]).is_empty());
}

#[test]
fn methods_of_traits_tests_and_other_types_do_not_count() {
    let source = format!(
        "struct A; impl A {{ {} }} impl T for A {{ {} }} #[cfg(test)] impl A {{ {} }} mod b {{ struct A; impl A {{ {} }} }}",
        methods(0..50),
        methods(0..9),
        methods(50..60),
        methods(0..9),
    );
    assert!(check_one(sizes::check_types, &source).is_empty());
}

#[test]
fn types_that_are_not_shipped_may_be_large() {
    let source = format!("struct A; impl A {{ {} }}", methods(0..60));
    assert!(check_all(sizes::check_types, &[("crates/sim/src/lib.rs", &source)]).is_empty());
}

#[test]
fn fields_are_counted() {
    let fields = |number| {
        (0..number)
            .map(|it| format!("f{it}: u8,"))
            .collect::<Vec<_>>()
            .concat()
    };
    let bad = format!("enum E {{ V {{ {} }} }}", fields(13));
    assert_one(&check_one(sizes::check_types, &bad), &["E::V: 13 fields"]);
    let good = format!("struct S {{ {} #[cfg(test)] more: u8 }}", fields(12));
    assert!(check_one(sizes::check_types, &good).is_empty());
}

#[test]
fn lines_of_functions_are_counted() {
    let function = |body| {
        format!(
            "/// Says\n/// much.\n#[inline]\npub fn long(\n) {{{}}}",
            "\n".repeat(body)
        )
    };
    let found = check_one(sizes::check_functions, &function(63));
    assert_one(&found, &["lib.rs:4 fn long: 65 lines"]);
    assert!(check_one(sizes::check_functions, &function(62)).is_empty());
    let method = function(63).replace("pub ", "");
    let methods = format!("impl A {{ {method} }} trait T {{ {method} }}");
    assert_eq!(check_one(sizes::check_functions, &methods).len(), 2);
    let test = format!("#[cfg(all(test, unix))] mod tests {{ {} }}", function(63));
    assert!(check_one(sizes::check_functions, &test).is_empty());
}

#[test]
fn lines_of_all_files_are_counted() {
    let files = |lines| [("crates/sim/tests/long.rs".to_owned(), "\n".repeat(lines))];
    let check = |lines| {
        let [(path, text)] = files(lines);
        check_all(sizes::check_files, &[(&path, &text)])
    };
    assert_one(&check(621), &["crates/sim/tests/long.rs: 621 lines"]);
    assert!(check(620).is_empty());
}

/// A crate of three files.
fn three<'a>(lib: &'a str, a: &'a str, b: &'a str) -> Vec<String> {
    let files = [
        (LIB, lib),
        ("crates/driver/src/a.rs", a),
        ("crates/driver/src/b.rs", b),
    ];
    check_all(circles::check, &files)
}

#[test]
fn circles_are_found_through_every_kind_of_use() {
    let backs = [
        "use crate::a::A; struct B;",
        "struct B; fn f(a: super::a::A) {}",
        "struct B; fn f() { crate::a::f(); }",
        "use super::a; struct B; fn f() { a::f() }",
        "use super::*; struct B; fn f(_: A) {}",
        "struct B; fn f() { vec![crate::a::f()]; }",
        "use crate::{A as Other}; struct B;",
        "struct B; impl crate::a::T for B {}",
        "struct B; mod inside { use super::super::a::A; }",
    ];
    for b in backs {
        let a = "use crate::b::B; pub struct A; pub fn f() {} pub trait T {}";
        let found = three("mod a; mod b; pub use a::A;", a, b);
        assert_one(
            &found,
            &[
                "circle of 2 files: a.rs, b.rs",
                "a.rs uses b.rs: B",
                "b.rs uses a.rs: ",
            ],
        );
    }
}

#[test]
fn a_parent_that_declares_and_reexports_forms_no_circle() {
    let lib = "mod a; mod b; pub use a::A; pub(crate) use b::{B, f};";
    assert!(
        three(
            lib,
            "use crate::B; pub struct A;",
            "pub struct B; pub fn f() {}"
        )
        .is_empty()
    );
}

#[test]
fn a_parent_that_uses_its_reexport_is_in_a_circle() {
    let lib = "mod a; mod b; pub use a::A; pub struct L(A);";
    assert_one(
        &three(lib, "use crate::L; pub struct A;", ""),
        &["a.rs, lib.rs"],
    );
}

#[test]
fn a_variable_with_the_name_of_an_item_is_no_use() {
    let lib = "mod a; mod b; pub use a::answer; pub struct L; fn f(answer: u8) { let _ = answer; }";
    assert!(three(lib, "use crate::L; pub fn answer() {}", "").is_empty());
    let call = "mod a; mod b; pub use a::answer; pub struct L; fn f() { answer() }";
    assert_one(
        &three(call, "use crate::L; pub fn answer() {}", ""),
        &["a.rs, lib.rs"],
    );
}

#[test]
fn a_circle_of_three_is_one_finding() {
    let found = three(
        "mod a; mod b; use a::A; pub struct L;",
        "use crate::b::B; pub struct A;",
        "use crate::L; pub struct B;",
    );
    assert_one(&found, &["circle of 3 files: a.rs, b.rs, lib.rs"]);
}

#[test]
fn uses_of_tests_and_other_crates_form_no_circle() {
    let a = "use crate::b::B; pub struct A;";
    for b in [
        "pub struct B; #[cfg(test)] use crate::a::A;",
        "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
        "pub struct B; use other::a::A;",
        "pub struct B; use ::a::A;",
        "pub struct B; fn f() { let a = 1; a }",
        "pub struct B; use super::a;",
        "pub struct B; fn f() { println!(\"{}\", self.A) }",
    ] {
        let found = three("mod a; mod b;", a, b);
        assert!(found.is_empty(), "{b}: {found:?}");
    }
}

#[test]
fn errors_that_are_texts_are_found() {
    for bad in [
        "fn f() -> Result<u8, String> { }",
        "fn f() -> Result<u8, &'static str> { }",
        "fn f() -> std::result::Result<u8, Cow<'static, str>> { }",
        "fn f(then: impl FnOnce() -> Result<(), String>) { }",
        "trait T { fn f(&self) -> Option<Result<(), String>>; }",
        "impl A { fn f() -> Result<(), Box<str>> { } }",
        "struct S { result: Result<(), String> }",
        "type R<T> = Result<T, String>;",
        "impl FromStr for A { type Err = String; }",
        "fn f() { fn inside() -> Result<(), String> { } }",
    ] {
        assert_one(
            &check_one(signatures::check_errors, bad),
            &["lib.rs:1", "is a text"],
        );
    }
}

#[test]
fn other_errors_are_left_alone() {
    for good in [
        "fn f() -> Result<String, Error> { let it: Result<u8, String> = g(); it }",
        "fn f() -> io::Result<String> { }",
        "#[cfg(test)] fn f() -> Result<(), String> { }",
        "impl Iterator for A { type Item = String; }",
    ] {
        assert!(
            check_one(signatures::check_errors, good).is_empty(),
            "{good}"
        );
    }
}

#[test]
fn names_of_several_types_are_found() {
    let link = "crates/link/src/lib.rs";
    let bad = [(LIB, "struct Side;"), (link, "mod inside { enum Side {} }")];
    let found = Workspace::example(&bad);
    let found = signatures::check_names(&found);
    assert_eq!(found[0].folders, "driver link");
    assert_one(
        &texts(found),
        &["Side: 2 types: crates/driver/src/lib.rs:1, crates/link/src/lib.rs:1"],
    );
    let good = [
        (LIB, "struct Side; #[cfg(test)] mod tests { struct Side; }"),
        (link, "use lockstep_driver::Side; fn side() {}"),
        ("crates/sim/src/lib.rs", "struct Side;"),
    ];
    assert!(check_all(signatures::check_names, &good).is_empty());
}

fn small_workspace() -> Workspace {
    Workspace::example(&[
        (
            "crates/driver/src/lib.rs",
            "//! The driver. More.\nmod host;",
        ),
        (
            "crates/driver/src/host.rs",
            "//! The [`Host`] of\n//! one | two:\n//!\n//! More.\nmod os; mod world {}",
        ),
        ("crates/driver/src/host/os.rs", "#[cfg(test)] mod tests;"),
        ("crates/driver/src/host/os/tests.rs", ""),
        ("crates/sim/src/lib.rs", "//! The simulator."),
        ("src/main.rs", "//! The program.\nfn main() {}"),
    ])
}

#[test]
fn architecture_names_no_lost_file() {
    let of = |text: &str| texts(architecture::check(&small_workspace(), text));
    let all = "`driver/lib.rs` `driver/host/` `sim/lib.rs` `log/` `src/main.rs`\n```\n`src/host.rs`\n```\n";
    assert!(of(all).is_empty());
    for wrong in ["driver/dial.rs", "fuse/write.rs", "driver/peer/"] {
        let found = of(&format!("{all} `{wrong}`"));
        assert_one(&found, &[&format!("`{wrong}` names no file")]);
    }
}

#[test]
fn modules_are_listed_by_crate_and_folder() {
    let page = module_list::page(&small_workspace());
    let (_, page) = page.split_once("# The product").unwrap();
    for part in [
        "\n## `crates/driver`\n\n| file | content |\n|---|---|\n",
        "| `driver/host.rs` | The `Host` of one \\| two |\n| `driver/lib.rs` | The driver |\n\n### `driver/host/`\n",
        "| `driver/host/os.rs` |  |\n",
        "\n## `src`\n\n| file | content |\n|---|---|\n| `src/main.rs` | The program |\n",
        "| `sim/lib.rs` | The simulator |\n",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert!(!page.contains("tests.rs"), "{page}");
    let silent = texts(module_list::without_head(&small_workspace()));
    assert_one(&silent, &["crates/driver/src/host/os.rs has no head"]);
}

fn documents(files: &[(&str, &str)]) -> paths::Documents {
    let owned = |&(path, text): &(&str, &str)| (path.to_owned(), text.to_owned());
    files.iter().map(owned).collect()
}

#[test]
fn links_to_lost_files_and_headings_are_found() {
    let page = |link: &str| {
        documents(&[
            (
                "docs/a.md",
                &format!("[text]({link})\n```\n[no](link)\n```\n"),
            ),
            ("docs/b/c.md", "# One head\n\n## Two `of` them: here\n"),
        ])
    };
    let exists = |path: &str| path == "docs/b/c.md" || path == "docs/a.md";
    let of = |link: &str| texts(paths::check_links(&page(link), &exists));
    for good in [
        "b/c.md",
        "b/../b/c.md#one-head",
        "b/c.md#two-of-them-here",
        "https://a.b/c.md",
    ] {
        assert!(of(good).is_empty(), "{good}");
    }
    for bad in ["c.md", "b/c.md#two", "#one-head", "../docs/d.md"] {
        assert_one(&of(bad), &["docs/a.md: no target of", bad]);
    }
}

#[test]
fn names_of_lost_files_are_found() {
    let source = "//! See host/os.rs, `driver/host.rs` and docs/a.md.\nmod host;\n// Not peer.rs.\nconst A: &str = \"x.rs\";";
    let workspace = Workspace::example(&[
        (LIB, source),
        (
            "crates/driver/src/host.rs",
            "mod os; const A: &str = \"see docs/b.md\";",
        ),
        ("crates/driver/src/host/os.rs", ""),
    ]);
    let pages = documents(&[(
        "docs/a.md",
        "`os.rs` and [a](../docs/a.md), `{a,b}.rs`, `/etc/x.md`",
    )]);
    assert_eq!(
        texts(paths::check_names(&workspace, &pages)),
        [
            "crates/driver/src/host.rs names docs/b.md, and no such file exists",
            "crates/driver/src/lib.rs names peer.rs, and no such file exists"
        ]
    );
}

#[test]
fn cited_tests_that_are_lost_are_found() {
    let workspace = Workspace::example(&[(LIB, "fn a_cut_is_only_a_pause() {}")]);
    let pages = documents(&[(
        "docs/a.md",
        "`a_cut_is_only_a_pause`, `a_cut_is_no_pause_yet`, `pause_limit_ms`",
    )]);
    let found = texts(paths::check_tests(&workspace, &pages));
    assert_eq!(
        found,
        ["docs/a.md cites a_cut_is_no_pause_yet, and no such test exists"]
    );
}

#[test]
fn cited_headings_that_are_lost_are_found() {
    let source = r#"const A: &str = "see \"A disk
            hangs\" in docs/a.md"; const B: &str = "see \"A disk\" in docs/a.md"; // "It `is` so" in docs/a.md"#;
    let workspace = Workspace::example(&[(LIB, source)]);
    let pages = documents(&[("docs/a.md", "# A disk hangs\n## It `is` so\n")]);
    let found = texts(paths::check_headings(&workspace, &pages));
    assert_one(
        &found,
        &["cites \"A disk\"", "docs/a.md has no such heading"],
    );
}

#[test]
fn functions_and_views_count_for_their_type() {
    let functions = |first: &str, number: usize| {
        let all = (0..number).map(|it| format!("fn f{it}{}({first}) {{}}\n", first.len()));
        all.collect::<Vec<_>>().concat()
    };
    let source = |methods_of_view: usize, free: usize| {
        format!(
            "struct A; impl A {{ {} }} mod b {{ use super::A; struct V<'a> {{ a: &'a A, b: u8 }} struct W {{ b: u8 }} \
             impl<'a> V<'a> {{ {} }} impl W {{ {} }} {} {} {} fn other(b: &W, a: &A) {{}} }}",
            methods(0..20),
            methods(0..methods_of_view),
            methods(0..40),
            functions("a: &A", free),
            functions("mut aa: &mut A", 3),
            functions("a: &std::sync::Arc<A>", 2),
        )
    };
    assert!(check_one(surface::check, &source(10, 10)).is_empty());
    let found = check_one(surface::check, &source(10, 11));
    assert_one(
        &found,
        &["A: 46 functions (20 methods, 16 free, 10 of the view V), at most 45"],
    );
    assert_eq!(check_one(surface::check, &source(11, 10)).len(), 1);
}

#[test]
fn a_facade_and_types_of_the_simulator_have_their_limits() {
    let of =
        |name: &str, number| format!("struct {name}; impl {name} {{ {} }}", methods(0..number));
    let fs = |number| {
        check_all(
            surface::check,
            &[("crates/fs/src/lib.rs", &of("Store", number))],
        )
    };
    assert!(fs(60).is_empty());
    assert_one(&fs(61), &["Store: 61", "at most 60"]);
    let sim = check_all(
        surface::check,
        &[("crates/sim/src/lib.rs", &of("Store", 46))],
    );
    assert_one(&sim, &["at most 45"]);
}

#[test]
fn files_of_a_folder_are_counted() {
    let check = |number: usize| {
        let mods: Vec<_> = (0..number).map(|it| format!("mod m{it};\n")).collect();
        let mods = mods.concat();
        let mut files = vec![(LIB.to_owned(), "mod a;".to_owned())];
        files.push((
            "crates/driver/src/a.rs".to_owned(),
            format!("{mods} #[cfg(test)] mod tests;"),
        ));
        files.push(("crates/driver/src/a/tests.rs".to_owned(), String::new()));
        files
            .extend((0..number).map(|it| (format!("crates/driver/src/a/m{it}.rs"), String::new())));
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|it| (it.0.as_str(), it.1.as_str()))
            .collect();
        check_all(sizes::check_folders, &files)
    };
    assert!(check(20).is_empty());
    assert_one(&check(21), &["crates/driver/src/a: 21 files, at most 20"]);
}

#[test]
fn circles_of_modules_are_found_where_files_have_none() {
    let files = [
        (LIB, "mod a; mod b;"),
        ("crates/driver/src/a.rs", "mod up; mod down;"),
        ("crates/driver/src/a/up.rs", "use crate::b::B; struct Up;"),
        ("crates/driver/src/a/down.rs", "pub struct Down;"),
        (
            "crates/driver/src/b.rs",
            "use crate::a::down::Down; pub struct B;",
        ),
    ];
    assert!(check_all(circles::check, &files).is_empty());
    let found = check_all(circles::check_modules, &files);
    assert_one(
        &found,
        &["circle of 2 modules: a, b", "a uses b: B", "b uses a: Down"],
    );
}

#[test]
fn words_that_came_back_are_found() {
    let workspace = Workspace::example(&[
        (LIB, "// A Debt is no name here.\nmod host;"),
        (
            "crates/driver/src/host.rs",
            "struct Debt; struct DebtLess;\n/// The change\n/// trace\nfn f() {}",
        ),
    ]);
    let pages = documents(&[("docs/a.md", "Debt is fine, `Debt` is not.")]);
    let found = texts(words::check(&workspace, &pages));
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[0].contains("host.rs has \"Debt\": \"UnrecordedPromotion\" took its place"),
        "{found:?}"
    );
}

#[test]
fn code_of_documentation_is_found() {
    let bad = "//! ```text\n//! a\n//! ```\n\n/// ```\n/// f();\n/// ```\nfn f() {}\n";
    let found = check_one(untested::check_documentation, bad);
    assert_one(&found, &["lib.rs:5: "]);
    let good = bad.replace("/// ```\n/// f", "/// ```text\n/// f");
    assert!(check_one(untested::check_documentation, &good).is_empty());
}

#[test]
fn tests_of_targets_without_tests_are_found() {
    let check = |folder: &str| {
        let workspace = Workspace::example(&[(LIB, "#[test]\nfn t() {}\n")]);
        texts(untested::check_targets(&workspace, &[folder.to_owned()]))
    };
    assert_one(&check("driver"), &["lib.rs: "]);
    assert!(check("lossy").is_empty());
    assert!(untested::leaves_out("[lib]\ntest = false\n"));
    assert!(!untested::leaves_out("[lib]\nbench = false\n"));
}
