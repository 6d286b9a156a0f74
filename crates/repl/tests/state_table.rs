//! `docs/protocol.md` shows the state table as the code has it.
//!
//! The part of the page between the two markers is made from [`TABLE`] and [`State`]. After a change
//! of the table, `LOCKSTEP_WRITE_DOCS=1 cargo test -p lockstep-repl --test state_table` writes it
//! anew; without that variable the page is only read.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::{self, Write as _};
use std::path::Path;
use std::{env, fs};

use lockstep_repl::state::{Service, State, TABLE};

const BEGIN: &str = "<!-- state table: begin (made by crates/repl/tests/state_table.rs) -->\n";
const END: &str = "<!-- state table: end -->";
const REWRITE: &str = "LOCKSTEP_WRITE_DOCS";

#[test]
fn the_page_shows_the_state_table() -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    let page = fs::read_to_string(&path)?;
    let (before, rest) = page.split_once(BEGIN).ok_or("the first marker is gone")?;
    let (shown, after) = rest.split_once(END).ok_or("the last marker is gone")?;
    let table = text()?;
    if env::var_os(REWRITE).is_some() {
        fs::write(&path, [before, BEGIN, &table, END, after].concat())?;
        return Ok(());
    }
    assert!(
        shown == table,
        "docs/protocol.md is behind the code: run this test with {REWRITE}=1 and read what changed"
    );
    Ok(())
}

#[test]
fn no_pair_is_in_the_table_twice() {
    for (number, (state, trigger, ..)) in TABLE.iter().enumerate() {
        let earlier = TABLE.iter().take(number);
        let twice = earlier.filter(|(s, t, ..)| (s, t) == (state, trigger));
        assert_eq!(twice.count(), 0, "{state:?} on {trigger:?}");
    }
}

/// Both tables as they stand in the page.
fn text() -> Result<String, fmt::Error> {
    let mut text = String::from(
        "\n| state | `lockstep status` says | a write meets | a metadata operation meets |\n\
         |---|---|---|---|\n",
    );
    for state in states() {
        let (write, metadata) = met(state);
        writeln!(
            text,
            "| {state:?} | {} | {write} | {metadata} |",
            state.describe()
        )?;
    }
    text.push_str("\n| in state | on | goes to | and does, in this order |\n|---|---|---|---|\n");
    for (state, trigger, next, actions) in TABLE {
        let actions: Vec<_> = actions.iter().map(|action| format!("{action:?}")).collect();
        let actions = actions.join(", ");
        writeln!(text, "| {state:?} | {trigger:?} | {next:?} | {actions} |")?;
    }
    text.push('\n');
    Ok(text)
}

/// Every state, in the order in which the table names them.
fn states() -> Vec<State> {
    let mut order = BTreeMap::new();
    order.insert(0, State::Unmirrored);
    for (number, (state, ..)) in TABLE.iter().enumerate() {
        if !order.values().any(|known| known == state) {
            order.insert(number + 1, *state);
        }
    }
    order.into_values().collect()
}

/// What a write and a metadata operation of a client meet.
fn met(state: State) -> (&'static str, &'static str) {
    if format!("{state:?}").starts_with("Secondary") {
        return ("(no clients)", "(no clients)");
    }
    match state.service() {
        Service::Alone => ("done here alone", "done here alone"),
        Service::Mirrored => ("done on both", "done on both"),
        Service::WritesAlone => ("done here alone", "waits"),
        Service::Wait => ("waits", "waits"),
    }
}
