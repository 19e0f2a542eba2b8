//! `make status`: component, version, pid, memory, ready.

use std::process::ExitCode;

use anyhow::Result;

use crate::components::{self, Component, Parts};
use crate::environment::Environment;
use crate::tools::Toolbox;

/// Prints the table; fails when something that should run is not ready.
pub async fn show(environment: &Environment) -> Result<ExitCode> {
    let settings = environment.settings()?;
    let tools = match settings.node() {
        Some(_) => Toolbox::with_node(environment.cache()).await?,
        None => Toolbox::ready(environment.cache()).await?,
    };
    let parts = Parts {
        environment,
        settings: &settings,
        tools: &tools,
    };
    println!(
        "{:<30}{:<10}{:>9}{:>10}  READY",
        "COMPONENT", "VERSION", "PID", "MEMORY"
    );
    let (mut all_ready, mut total) = (true, 0);
    for component in parts.all()? {
        let (line, memory, ready) = describe(environment, &component).await;
        println!("{line}");
        all_ready &= ready;
        total += memory;
    }
    println!("{:<49}{:>10}", "", mebibytes(total));
    if !all_ready {
        println!("\nNot everything is ready: `make up` starts what has died, `make logs C=<component>` shows why.");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

async fn describe(environment: &Environment, component: &Component) -> (String, u64, bool) {
    let name = component.name;
    let Some(record) = environment.process(name) else {
        return (
            format!(
                "{name:<30}{:<10}{:>9}{:>10}  no: not running",
                component.version, "-", "-"
            ),
            0,
            false,
        );
    };
    let memory = record.process.memory().unwrap_or_default();
    let (ready, ok) = match component.probe.check(&record.process, &environment.log(name)).await {
        Ok(()) => ("yes".to_owned(), true),
        Err(why) => (format!("no: {why}"), false),
    };
    (
        format!(
            "{name:<30}{:<10}{:>9}{:>10}  {ready}",
            component.version,
            record.process.pid,
            mebibytes(memory)
        ),
        memory,
        ok,
    )
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

impl Parts<'_> {
    /// What should run: of the two that reconcile Workspaces, the one that was started last.
    fn all(&self) -> Result<Vec<Component>> {
        let simulated = self.environment.process(components::SIMULATOR).is_some();
        let mut all = vec![
            self.etcd()?,
            self.api_server()?,
            self.controller_manager()?,
            self.core()?,
        ];
        all.push(if simulated { self.simulator()? } else { self.provider()? });
        match self.settings.node() {
            Some(network) => all.extend(self.node(network)?),
            None => all.extend(self.controllers()?),
        }
        Ok(all)
    }
}
