//! `docs/protocol/states.md` shows the state table as the code has it.
//!
//! The part of the page between the two markers is made from [`State`], [`TABLE`] and [`REFUSED`]. After a change
//! of the table, `LOCKSTEP_WRITE_DOCS=1 cargo test -p lockstep-repl --test state_table` writes it
//! anew; without that variable the page is only read.

use std::error::Error;
use std::fmt::{self, Debug, Write as _};
use std::path::Path;
use std::{env, fs};

use lockstep_repl::state::{REFUSED, Service, State, TABLE};
use strum::VariantArray;

const BEGIN: &str = "<!-- state table: begin (made by crates/repl/tests/state_table.rs) -->\n";
const END: &str = "<!-- state table: end -->";
const REWRITE: &str = "LOCKSTEP_WRITE_DOCS";

#[test]
fn the_page_shows_the_state_table() -> Result<(), Box<dyn Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol/states.md");
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
        "docs/protocol/states.md is behind the code: run this test with {REWRITE}=1 and read what changed"
    );
    Ok(())
}

/// The tables as they stand in the page.
fn text() -> Result<String, fmt::Error> {
    let mut text = String::new();
    states(&mut text)?;
    handled(&mut text)?;
    refused(&mut text)?;
    text.push('\n');
    Ok(text)
}

fn states(text: &mut String) -> fmt::Result {
    text.push_str(
        "\n| state | `lockstep status` says | in the paper's Figure 2 | a write meets | a metadata \
         operation meets |\n|---|---|---|---|---|\n",
    );
    for &state in State::VARIANTS {
        let (write, metadata) = met(state);
        let (says, paper) = (state.describe(), state.in_paper());
        writeln!(
            text,
            "| {state:?} | {says} | {paper} | {write} | {metadata} |"
        )?;
    }
    Ok(())
}

fn handled(text: &mut String) -> fmt::Result {
    text.push_str("\n| in state | on | goes to | and does, in this order |\n|---|---|---|---|\n");
    for (state, trigger, next, actions) in TABLE {
        let actions = list(actions);
        writeln!(text, "| {state:?} | {trigger:?} | {next:?} | {actions} |")?;
    }
    Ok(())
}

fn refused(text: &mut String) -> fmt::Result {
    text.push_str("\n| in states | on | refused as | because |\n|---|---|---|---|\n");
    for (states, triggers, why, because) in REFUSED {
        let (states, triggers) = (list(states), list(triggers));
        writeln!(text, "| {states} | {triggers} | {why:?} | {because} |")?;
    }
    Ok(())
}

/// In words.
fn list<T: Debug + VariantArray + PartialEq>(items: &[T]) -> String {
    if items == T::VARIANTS {
        return "(all)".to_owned();
    }
    let items: Vec<_> = items.iter().map(|item| format!("{item:?}")).collect();
    items.join(", ")
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
        Service::Refused => ("EIO", "EIO"),
    }
}
