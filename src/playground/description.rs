//! `playground.json`: what runs, for the programs that use a playground.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use lockstepfs::config::Role;
use serde::Serialize;

use super::DATASTORE;
use super::layout::Layout;
use super::process::NodeProcess;

#[derive(Serialize)]
struct Description<'a> {
    datastore: &'static str,
    mount: &'a Path,
    nodes: Vec<NodeDescription<'a>>,
}

#[derive(Serialize)]
struct NodeDescription<'a> {
    name: &'static str,
    pid: u32,
    role: Role,
    store: &'a Path,
    /// Where this node has mounted the datastore: only the primary has.
    mount: Option<&'a Path>,
    control: &'a Path,
    config: &'a Path,
    /// The arguments that start this node again, the program first.
    command: &'a [String],
}

/// Writes the description, atomically: whoever sees the file sees all of it.
pub(super) fn write(layout: &Layout, nodes: &[NodeProcess]) -> Result<()> {
    let description = Description {
        datastore: DATASTORE,
        mount: &layout.mount,
        nodes: nodes.iter().map(describe).collect(),
    };
    let path = layout.dir.join("playground.json");
    let draft = layout.dir.join("playground.json.new");
    fs::write(&draft, serde_json::to_vec_pretty(&description)?)
        .and_then(|()| fs::rename(&draft, &path))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn describe(node: &NodeProcess) -> NodeDescription<'_> {
    let plan = &node.plan;
    NodeDescription {
        name: plan.name,
        pid: node.pid(),
        role: plan.role,
        store: &plan.store,
        mount: (plan.role == Role::Primary).then_some(&plan.mount),
        control: &plan.control,
        config: &plan.config,
        command: &node.command,
    }
}
