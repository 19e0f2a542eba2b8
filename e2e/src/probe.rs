//! Is a process ready? Asked over HTTP, or read from its log.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::{Instant, sleep};

use crate::process::Process;

/// How long a process may take to become ready; they take seconds.
const READY_WITHIN: Duration = Duration::from_secs(300);

/// How one knows that a process does its work.
pub enum Probe {
    Http {
        url: String,
        authority: Option<String>,
    },
    /// A line that the process writes to its log when it is ready.
    LogLine(&'static str),
}

impl Probe {
    pub fn http(url: String) -> Self {
        Self::Http { url, authority: None }
    }

    pub fn https(url: String, authority: &str) -> Self {
        Self::Http {
            url,
            authority: Some(authority.to_owned()),
        }
    }

    /// Returns when the process is ready; an error when it ended, or is not ready in time.
    pub async fn wait(&self, name: &str, process: &Process, log: &Path) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while let Err(why) = self.check(process, log).await {
            if !process.is_alive() {
                bail!("{name} ended at once; the end of its log:\n{}", tail(log));
            }
            if Instant::now() >= deadline {
                bail!(
                    "{name} is not ready after {} s ({why:#}); the end of its log:\n{}",
                    READY_WITHIN.as_secs(),
                    tail(log)
                );
            }
            // A foreign process offers nothing to wait on but the answer to the same question.
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// `Ok` when ready; otherwise what is missing.
    pub async fn check(&self, process: &Process, log: &Path) -> Result<()> {
        match self {
            Self::Http { url, authority } => get(url, authority.as_deref()).await.map(drop),
            Self::LogLine(line) => {
                let mut file = fs::File::open(log)?;
                file.seek(SeekFrom::Start(process.log_offset))?;
                let mut text = Vec::new();
                file.read_to_end(&mut text)?;
                String::from_utf8_lossy(&text)
                    .contains(line)
                    .then_some(())
                    .context("it has not said that it is ready")
            }
        }
    }
}

/// The end of a log, for an error message.
fn tail(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines
        .iter()
        .skip(lines.len().saturating_sub(12))
        .map(|line| format!("    {line}\n"))
        .collect()
}

/// How long an answer may take: one that comes later is as good as none.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The body of a successful GET.
pub async fn get(url: &str, authority: Option<&str>) -> Result<String> {
    let request = http::Request::get(url).body(Vec::new())?;
    let client = client(url, authority).await?;
    let answer = tokio::time::timeout(ANSWER_WITHIN, client.request_text(request)).await;
    answer
        .with_context(|| format!("no answer within {} s", ANSWER_WITHIN.as_secs()))?
        .with_context(|| format!("GET {url} failed"))
}

/// A plain HTTP client without credentials; kube's own serves well for that.
pub async fn client(url: &str, authority: Option<&str>) -> Result<Client> {
    let uri: http::Uri = url.parse()?;
    let server = format!(
        "{}://{}",
        uri.scheme_str().unwrap_or("http"),
        uri.authority().context("a URL without a host")?
    );
    let mut cluster = serde_json::json!({"server": server});
    if let (Some(pem), Some(fields)) = (authority, cluster.as_object_mut()) {
        fields.insert(
            "certificate-authority-data".into(),
            base64::engine::general_purpose::STANDARD.encode(pem).into(),
        );
    }
    let kubeconfig: Kubeconfig = serde_json::from_value(serde_json::json!({
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
