//! The ledger: one file per thing that exists in the cloud, written whole or not at all.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use crate::pki::write_private;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Vpc,
    Cluster,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vpc => "vpc",
            Self::Cluster => "cluster",
        })
    }
}

/// A thing that exists, or is being made or removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub kind: Kind,
    /// The name of the Terraform workspace that made it.
    pub name: String,
    pub created: Time,
    /// Where a cluster listens, on 127.0.0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// What Terraform asked for last and got.
    pub inputs: BTreeMap<String, String>,
}

impl Entry {
    pub(super) fn new(kind: Kind, name: &str, inputs: &Inputs) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            created: Time(jiff::Timestamp::now()),
            port: None,
            inputs: inputs.recorded(),
        }
    }

    /// A variable's value; empty when it was not given.
    pub fn input(&self, variable: &str) -> &str {
        self.inputs.get(variable).map_or("", String::as_str)
    }
}

/// The entries and the locks beside them.
#[derive(Debug)]
pub(super) struct Ledger {
    entries: PathBuf,
    locks: PathBuf,
}

impl Ledger {
    pub(super) fn open(cloud: &Path) -> Result<Self> {
        let ledger = Self {
            entries: cloud.join("ledger"),
            locks: cloud.join("locks"),
        };
        for dir in [&ledger.entries, &ledger.locks] {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(ledger)
    }

    /// All entries, by kind and name.
    pub(super) fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.entries).with_context(|| format!("cannot read {}", self.entries.display()))? {
            let path = file?.path();
            // Others are files that are being written.
            if path.extension().is_some_and(|extension| extension == "json") {
                entries.extend(read(&path)?);
            }
        }
        entries.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        Ok(entries)
    }

    pub(super) fn get(&self, kind: Kind, name: &str) -> Result<Option<Entry>> {
        read(&self.file(kind, name))
    }

    pub(super) fn put(&self, entry: &Entry) -> Result<()> {
        write_private(
            &self.file(entry.kind, &entry.name),
            &serde_json::to_string_pretty(entry)?,
        )
    }

    pub(super) fn remove(&self, kind: Kind, name: &str) -> Result<()> {
        remove_file(&self.file(kind, name))
    }

    /// Held while a resource is changed: Terraform that lost its own lock, a restart after a reboot and an operator's command
    /// may all come at once. The file stays behind, because a lock on a removed file locks nothing.
    pub(super) async fn lock(&self, kind: Kind, name: &str) -> Result<Flock<fs::File>> {
        self.lock_file(&format!("{kind}-{name}")).await
    }

    /// Held while a port is chosen and written down, so that two clusters never get the same one.
    pub(super) async fn lock_ports(&self) -> Result<Flock<fs::File>> {
        self.lock_file("ports").await
    }

    async fn lock_file(&self, name: &str) -> Result<Flock<fs::File>> {
        let path = self.locks.join(name);
        let file = fs::File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, _)) => file,
        };
        println!("waiting for another command to release {name}");
        tokio::task::spawn_blocking(move || Flock::lock(file, FlockArg::LockExclusive))
            .await?
            .map_err(|(_, errno)| errno)
            .with_context(|| format!("cannot lock {}", path.display()))
    }

    fn file(&self, kind: Kind, name: &str) -> PathBuf {
        self.entries.join(format!("{kind}-{name}.json"))
    }
}

fn read(path: &Path) -> Result<Option<Entry>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    serde_json::from_str(&text)
        .map(Some)
        .with_context(|| format!("{} is damaged", path.display()))
}

/// Removes a file; one that is gone already is as good.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::inputs;
    use super::*;

    #[test]
    fn entries_are_found_again_until_they_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        assert!(ledger.entries().unwrap().is_empty());
        let network = Entry::new(Kind::Vpc, "b", &inputs(&[("region", "eu-central-1")]));
        let cluster = Entry {
            port: Some(20_000),
            ..Entry::new(Kind::Cluster, "a.b", &inputs(&[]))
        };
        ledger.put(&cluster).unwrap();
        ledger.put(&network).unwrap();
        // What a writer left behind when it was killed is no entry.
        fs::write(dir.path().join("ledger/vpc-x.new"), "{").unwrap();
        let kinds: Vec<_> = Ledger::open(dir.path())
            .unwrap()
            .entries()
            .unwrap()
            .into_iter()
            .map(|e| (e.kind, e.name, e.port))
            .collect();
        assert_eq!(
            kinds,
            [
                (Kind::Vpc, "b".to_owned(), None),
                (Kind::Cluster, "a.b".to_owned(), Some(20_000))
            ]
        );
        assert_eq!(
            ledger.get(Kind::Vpc, "b").unwrap().unwrap().input("region"),
            "eu-central-1"
        );
        ledger.remove(Kind::Vpc, "b").unwrap();
        ledger.remove(Kind::Vpc, "b").unwrap();
        assert_eq!(ledger.get(Kind::Vpc, "b").unwrap(), None);
        assert_eq!(ledger.entries().unwrap().len(), 1);
    }

    #[test]
    fn a_damaged_entry_is_an_error_and_no_empty_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        fs::write(dir.path().join("ledger/vpc-a.json"), "{").unwrap();
        assert!(
            ledger
                .entries()
                .unwrap_err()
                .to_string()
                .contains("vpc-a.json is damaged")
        );
    }

    #[tokio::test]
    async fn one_resource_is_changed_by_one_command_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        let first = ledger.lock(Kind::Vpc, "a").await.unwrap();
        let _other = ledger.lock(Kind::Vpc, "b").await.unwrap();
        let mut second = std::pin::pin!(ledger.lock(Kind::Vpc, "a"));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        second.await.unwrap();
    }
}
