//! A Prometheus for tests, from the distribution's package, and the kinds of the Prometheus operator.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::{Client, Config};
use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Child;
use tokio::time::{Instant, sleep};

use super::PATIENCE;
use crate::environment::free_ports;
use crate::manifests;
use crate::tools::Toolbox;
use crate::up::repository;

/// Finds a program of the package `prometheus`, and unpacks the package into the cache where it is not installed. `None`,
/// loudly, where there is none to be had: that machine cannot tell whether the alerts work.
pub fn program(cache: &Path, name: &str) -> Result<Option<PathBuf>> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&search)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file());
    if installed.is_some() {
        return Ok(installed);
    }
    let unpacked = cache.join("prometheus-package");
    let path = unpacked.join("usr/bin").join(name);
    if !path.is_file() && unpack(&unpacked).is_err() {
        // Not by a macro, whose output the test harness keeps to itself.
        writeln!(
            std::io::stderr(),
            "\nSKIPPED: {name} is not installed, and its package cannot be fetched. Alerts and dashboards are NOT tested.\n"
        )?;
        return Ok(None);
    }
    Ok(Some(path))
}

/// Fetches the package without installing it, which would start a service.
fn unpack(target: &Path) -> Result<()> {
    let cache = target.parent().context("a package without a place")?;
    std::fs::create_dir_all(cache)?;
    // Who comes second, be it another test or another run, waits and finds it done: apt-get gives up where another one is at work.
    let lock = File::create(target.with_extension("lock"))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| errno)?;
    if target.is_dir() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let run = |program: &str, arguments: &[&str]| -> Result<()> {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(directory.path())
            .output()?;
        ensure!(
            output.status.success(),
            "{program}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    if run("apt-get", &["download", "prometheus"]).is_err() {
        run("apt-get", &["update"])?;
        run("apt-get", &["download", "prometheus"])?;
    }
    let package = std::fs::read_dir(directory.path())?
        .next()
        .context("no package was fetched")??
        .path();
    // Beside its place, and into it when it is whole: half of a package would be taken for all of it ever after.
    let unfinished = tempfile::tempdir_in(cache)?;
    let whole = unfinished.path().join("package");
    run(
        "dpkg-deb",
        &["-x", &package.to_string_lossy(), &whole.to_string_lossy()],
    )?;
    Ok(std::fs::rename(whole, target)?)
}

/// Makes these kinds of the Prometheus operator known to the API server; by their plurals, for all of them are many megabytes.
pub async fn apply_operator_crds(client: &Client, cache: &Path, plurals: &[&str]) -> Result<()> {
    let tools = Toolbox::for_chart(cache).await?;
    let mut crds = Vec::new();
    for file in tools.manifests("prometheus-operator", "example/prometheus-operator-crd")? {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        if plurals
            .iter()
            .any(|plural| *name == format!("monitoring.coreos.com_{plural}"))
        {
            crds.extend(manifests::read(&file)?);
        }
    }
    ensure!(
        crds.len() == plurals.len(),
        "the Prometheus operator has {} CRDs of {plurals:?}",
        crds.len()
    );
    manifests::apply_crds(client, crds).await
}

/// One that runs, and ends with this value.
#[derive(Debug)]
pub struct Prometheus {
    process: Child,
    address: String,
    directory: TempDir,
}

impl Prometheus {
    /// Scrapes and evaluates these rules every second.
    pub async fn start(program: &Path, scrape_configs: &[Value], rules: &Value) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        std::fs::write(directory.path().join("rules.yaml"), rules.to_string())?;
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yaml"], "scrape_configs": scrape_configs,
        });
        std::fs::write(directory.path().join("prometheus.yml"), config.to_string())?;
        // Prometheus cannot choose a port by itself and say which.
        let port = free_ports(1)?.into_iter().next().context("no free port")?;
        let address = format!("127.0.0.1:{port}");
        let process = tokio::process::Command::new(program)
            .arg("--config.file=prometheus.yml")
            .arg("--storage.tsdb.path=data")
            .arg(format!("--web.listen-address={address}"))
            .current_dir(directory.path())
            .stdout(File::create(directory.path().join("log"))?)
            .stderr(File::create(directory.path().join("errors"))?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            process,
            address,
            directory,
        })
    }

    /// What the HTTP API answers.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value> {
        let query: Vec<String> = query
            .iter()
            .map(|(key, value)| format!("{key}={}", encoded(value)))
            .collect();
        let text = get(&self.address, &format!("/api/v1/{path}?{}", query.join("&"))).await?;
        let answer: Value = serde_json::from_str(&text).with_context(|| format!("{path} {query:?}: {text}"))?;
        ensure!(
            answer.get("status").is_some_and(|status| status == "success"),
            "{path} {query:?}: {answer}"
        );
        Ok(answer.get("data").cloned().unwrap_or_default())
    }

    /// The series that a query gives.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let data = self.get("query", &[("query", expression)]).await?;
        Ok(data
            .get("result")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default())
    }

    /// Waits until this many targets were scraped a few times, so that there are rates. Nobody tells when that is, and on a busy
    /// machine not every scrape ends within its second.
    pub async fn wait(&mut self, targets: usize) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let scraped = self.query("sum_over_time(up[1m]) >= 4").await;
            if scraped.as_ref().is_ok_and(|series| series.len() == targets) {
                return Ok(());
            }
            let ended = self.process.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let errors = std::fs::read_to_string(self.directory.path().join("errors"))?;
                bail!("Prometheus does not scrape all of {targets} targets: {scraped:?}\n{errors}");
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// Those of these queries of dashboards that have no answer now, for any of these jobs.
    pub async fn silent(&self, queries: &[String], jobs: &[&str]) -> Result<Vec<String>> {
        let mut silent = Vec::new();
        for query in queries {
            let mut answers = 0;
            for job in jobs {
                answers += self.query(&filled_in(query).replace("$job", job)).await?.len();
            }
            if answers == 0 {
                silent.push(query.clone());
            }
        }
        Ok(silent)
    }

    /// Waits until each of these queries has had an answer. A scrape that does not end within its second ends every series of its
    /// target until the next one does, and a panel is empty for that long.
    pub async fn answers(&self, queries: &[String], jobs: &[&str]) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut silent = self.silent(queries, jobs).await?;
        while !silent.is_empty() {
            ensure!(Instant::now() < deadline, "no answer to {silent:#?}");
            sleep(Duration::from_millis(500)).await;
            silent = self.silent(&silent, jobs).await?;
        }
        Ok(())
    }

    /// The rules that it has loaded; fails when it cannot evaluate one of them.
    pub async fn rules(&self) -> Result<Vec<String>> {
        let loaded = self.get("rules", &[]).await?;
        let groups = loaded.get("groups").and_then(Value::as_array).context("no groups")?;
        let rules = groups
            .iter()
            .filter_map(|group| group.get("rules")?.as_array())
            .flatten();
        rules
            .map(|rule| {
                let name = rule.get("name").and_then(Value::as_str).unwrap_or_default();
                let error = rule.get("lastError").unwrap_or(&Value::Null);
                ensure!(error.is_null(), "{name}: {error}");
                Ok(name.to_owned())
            })
            .collect()
    }
}

/// The body of an answer by plain HTTP.
pub async fn get(address: &str, path: &str) -> Result<String> {
    let client = Client::try_from(Config::new(format!("http://{address}").parse()?))?;
    Ok(client.request_text(http::Request::get(path).body(Vec::new())?).await?)
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// The chart's dashboards, by the names of their files.
pub const DASHBOARDS: [&str; 3] = ["fleet", "controller", "life"];

/// The queries of one of them, as they stand there.
pub fn queries(dashboard: &str) -> Result<Vec<String>> {
    let path = repository(&format!("charts/capt/files/dashboards/{dashboard}.json"));
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
    let panels = dashboard.get("panels").and_then(Value::as_array).context("no panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel.get("targets")?.as_array())
        .flatten();
    Ok(targets
        .filter_map(|target| target.get("expr")?.as_str())
        .map(str::to_owned)
        .collect())
}

/// A query as Grafana would send it, but for `$job`.
fn filled_in(query: &str) -> String {
    query
        .replace("$namespace", "capt-system")
        .replace("$__rate_interval", "1m")
        .replace("$__range", "5m")
}
