//! `playground.json`: the description of a running playground, for the programs that use it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use lockstep_types::Role;
use serde::Serialize;

use crate::config::DATASTORE;
use crate::layout::PlaygroundLayout;
use crate::node::NodeProcess;

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
    /// The mounted datastore, on the primary only.
    mount: Option<&'a Path>,
    control: &'a Path,
    config: &'a Path,
    /// The arguments that start this node again, the program first.
    command: &'a [String],
}

/// Writes the description atomically: a program that sees the file sees all of it.
pub(crate) fn write(layout: &PlaygroundLayout, nodes: &[NodeProcess]) -> Result<()> {
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
        command: node.command(),
    }
}
