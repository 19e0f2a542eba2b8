//! What a node changes on the machine, and that it takes all of it back.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::site::Site;

/// Everything on the machine that a node could leave behind, a line each.
#[derive(PartialEq)]
pub(crate) struct Machine(BTreeSet<String>);

impl Machine {
    pub(crate) fn now() -> Result<Self> {
        let mut seen = BTreeSet::new();
        let mut tell = |what: &str, lines: &str| seen.extend(lines.lines().map(|line| format!("{what}: {line}")));
        tell("rules", &said("nft", &["list", "tables"])?);
        tell("route", &said("ip", &["route", "show", "table", "all"])?);
        tell("namespace", &said("ip", &["netns", "list"])?);
        for entry in std::fs::read_dir("/sys/class/net")? {
            tell("link", &entry?.file_name().to_string_lossy());
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        for line in mounts.lines() {
            // Without the numbers, which the kernel gives anew.
            let fields: Vec<&str> = line.split(' ').collect();
            tell("mount", fields.get(4).context("a mount without a place")?);
        }
        for directory in [
            "/var/lib",
            "/var/log",
            "/run",
            "/etc",
            "/opt",
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/memory",
        ] {
            for entry in std::fs::read_dir(directory).into_iter().flatten() {
                tell("file", &entry?.path().to_string_lossy());
            }
        }
        for setting in [
            "net/ipv4/ip_forward",
            "vm/overcommit_memory",
            "vm/panic_on_oom",
            "kernel/panic",
            "kernel/panic_on_oops",
            "kernel/keys/root_maxkeys",
            "kernel/keys/root_maxbytes",
        ] {
            let value = std::fs::read_to_string(Path::new("/proc/sys").join(setting))?;
            tell("kernel", &format!("{setting} = {}", value.trim()));
        }
        Ok(Self(seen))
    }

    /// Nothing came and nothing went.
    pub(crate) fn assert_unchanged(&self) -> Result<()> {
        let now = Self::now()?;
        let came: Vec<&String> = now.0.difference(&self.0).collect();
        let went: Vec<&String> = self.0.difference(&now.0).collect();
        ensure!(came.is_empty() && went.is_empty(), "came: {came:#?}\nwent: {went:#?}");
        Ok(())
    }
}

fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Also when everything of it was killed at once, so that nobody could tidy up.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a node: make test-chart"]
async fn a_node_leaves_nothing_behind() -> Result<()> {
    let before = Machine::now()?;
    let site = Site::build("simulator").await?;
    site.install(&serde_json::json!({ "common": { "replicas": 1 } }))?;
    let during = Machine::now()?;
    let came: Vec<&String> = during.0.difference(&before.0).collect();
    ensure!(
        came.iter().all(|line| ["link: ", "route: ", "file: /sys/fs/cgroup/"]
            .iter()
            .any(|known| line.starts_with(known))),
        "the machine sees more of the node than a link, its routes and a cgroup: {came:#?}"
    );
    ensure!(
        before.0.difference(&during.0).next().is_none(),
        "something of the machine went"
    );

    for process in capt_e2e::process::marked(site.scratch.environment.dir()) {
        process.kill().await;
    }
    let output = site.scratch.run(&["down"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    before.assert_unchanged()
}

#[test]
#[ignore = "needs a node: make test-chart"]
fn a_node_where_there_can_be_none_is_refused_before_anything_is_made() -> Result<()> {
    let before = Machine::now()?;
    let state = tempfile::tempdir()?;
    // What a caller lacks in many containers, one after the other.
    for (missing, words) in [
        (&["unshare", "--user", "--map-user=1000"][..], "a node needs root"),
        (
            &["setpriv", "--bounding-set=-sys_admin"],
            "does not let root make namespaces",
        ),
        (
            &["setpriv", "--bounding-set=-net_admin"],
            "kernel lacks what a node needs",
        ),
    ] {
        let (program, arguments) = missing.split_first().context("no program")?;
        let output = Command::new(program)
            .args(arguments)
            .arg(env!("CARGO_BIN_EXE_capt-e2e"))
            .args(["--env", "test-no-node", "up", "--node"])
            .env("CAPT_STATE_DIR", state.path())
            .output()
            .with_context(|| format!("cannot run {program}, of util-linux"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success() && said.contains(words), "{missing:?}: {said}");
        let made: Vec<_> = std::fs::read_dir(state.path().join("test-no-node"))?
            .filter_map(|entry| Some(entry.ok()?.file_name()))
            .collect();
        ensure!(made == ["lock"], "{missing:?}: {made:?}");
    }
    before.assert_unchanged()
}
