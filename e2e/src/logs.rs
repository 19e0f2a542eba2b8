//! `make logs C=name`: the end of a component's log.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use crate::environment::Environment;

pub async fn show(environment: &Environment, component: Option<&str>, lines: usize, follow: bool) -> Result<()> {
    let known = names(environment);
    let Some(name) = component.filter(|name| !name.is_empty()) else {
        if known.is_empty() {
            bail!(
                "the environment `{}` has no logs yet: run `make up`",
                environment.name()
            );
        }
        println!(
            "Logs of the environment `{}`; show one with `make logs C=<name>`:\n",
            environment.name()
        );
        known.iter().for_each(|name| println!("    {name}"));
        return Ok(());
    };
    if !known.iter().any(|known| known == name) {
        bail!("there is no log of `{name}`; there are: {}", known.join(", "));
    }
    let path = environment.log(name);
    let mut file = fs::File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    let mut out = std::io::stdout();
    for line in all.iter().skip(all.len().saturating_sub(lines)) {
        writeln!(out, "{line}")?;
    }
    if !follow {
        return Ok(());
    }
    loop {
        // A file offers nothing to wait on without a watcher of its own; a short look is what `tail -f` does too.
        sleep(Duration::from_millis(200)).await;
        if file.metadata()?.len() < file.stream_position()? {
            file.seek(SeekFrom::Start(0))?;
        }
        std::io::copy(&mut file, &mut out)?;
        out.flush()?;
    }
}

fn names(environment: &Environment) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(environment.path("logs"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".log")?.to_owned()))
        .collect();
    names.sort();
    names
}
