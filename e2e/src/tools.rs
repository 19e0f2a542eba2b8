//! The real programs of the environment: which ones, at which version, and how they are built.
//!
//! Each group under `e2e/tools` is a Go module of its own, because their dependency trees disagree. Binaries and the
//! manifests that come with them land in a per-user cache keyed by the pins, so that a fresh clone does not build again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::progress::Step;

/// A Go module that pins programs which share one dependency tree.
struct Group {
    /// Its directory under `e2e/tools`.
    name: &'static str,
    /// The module whose version in `go.mod` is the version of the programs.
    module: &'static str,
    programs: &'static [Program],
    /// Directories of that module, without which its programs are of no use.
    manifests: &'static [&'static str],
    /// Variables set at link time; `{version}` and `{minor}` are filled in.
    link: &'static [(&'static str, &'static str)],
}

struct Program {
    name: &'static str,
    package: &'static str,
}

/// Without these the server calls itself v0.0.0, and clients that ask for its version give up.
const KUBERNETES_VERSION: &[(&str, &str)] = &[
    ("k8s.io/component-base/version.gitVersion", "{version}"),
    ("k8s.io/component-base/version.gitMajor", "1"),
    ("k8s.io/component-base/version.gitMinor", "{minor}"),
];

const GROUPS: &[Group] = &[
    Group {
        name: "etcd",
        module: "go.etcd.io/etcd/server/v3",
        programs: &[Program {
            name: "etcd",
            package: "go.etcd.io/etcd/server/v3",
        }],
        manifests: &[],
        link: &[],
    },
    Group {
        name: "kubernetes",
        module: "k8s.io/kubernetes",
        programs: &[
            Program {
                name: "kube-apiserver",
                package: "k8s.io/kubernetes/cmd/kube-apiserver",
            },
            Program {
                name: "kube-controller-manager",
                package: "k8s.io/kubernetes/cmd/kube-controller-manager",
            },
            Program {
                name: "kubectl",
                package: "k8s.io/kubernetes/cmd/kubectl",
            },
        ],
        manifests: &[],
        link: KUBERNETES_VERSION,
    },
    Group {
        name: "cluster-api",
        module: "sigs.k8s.io/cluster-api",
        programs: &[
            Program {
                name: "cluster-api-core",
                package: "sigs.k8s.io/cluster-api/core",
            },
            Program {
                name: "clusterctl",
                package: "sigs.k8s.io/cluster-api/cmd/clusterctl",
            },
        ],
        manifests: &["core/config/crd/bases", "core/config/webhook"],
        link: &[
            ("sigs.k8s.io/cluster-api/version.gitVersion", "{version}"),
            ("sigs.k8s.io/cluster-api/version.gitMajor", "1"),
            ("sigs.k8s.io/cluster-api/version.gitMinor", "{minor}"),
        ],
    },
    Group {
        name: "provider-terraform",
        module: "github.com/crossplane-contrib/provider-terraform",
        programs: &[Program {
            name: "provider-terraform",
            package: "github.com/upbound/provider-terraform/cmd/provider",
        }],
        manifests: &["package/crds"],
        // It has no flag for its metrics port and would take 8080: two environments could not run side by side.
        link: &[(
            "sigs.k8s.io/controller-runtime/pkg/metrics/server.DefaultBindAddress",
            "0",
        )],
    },
    Group {
        name: "terraform",
        module: "github.com/hashicorp/terraform",
        programs: &[Program {
            name: "terraform",
            package: "github.com/hashicorp/terraform",
        }],
        manifests: &[],
        link: &[],
    },
];

/// What a node needs besides; the environment runs without it.
const NODE_GROUPS: &[Group] = &[
    Group {
        name: "kubernetes",
        module: "k8s.io/kubernetes",
        programs: &[
            Program {
                name: "kubelet",
                package: "k8s.io/kubernetes/cmd/kubelet",
            },
            Program {
                name: "kube-proxy",
                package: "k8s.io/kubernetes/cmd/kube-proxy",
            },
            Program {
                name: "kube-scheduler",
                package: "k8s.io/kubernetes/cmd/kube-scheduler",
            },
        ],
        manifests: &[],
        link: KUBERNETES_VERSION,
    },
    Group {
        name: "containerd",
        module: "github.com/containerd/containerd/v2",
        programs: &[
            Program {
                name: "containerd",
                package: "github.com/containerd/containerd/v2/cmd/containerd",
            },
            Program {
                name: "containerd-shim-runc-v2",
                package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            },
            Program {
                name: "ctr",
                package: "github.com/containerd/containerd/v2/cmd/ctr",
            },
        ],
        manifests: &[],
        link: &[("github.com/containerd/containerd/v2/version.Version", "{version}")],
    },
];

/// What the chart is tested and installed with; the environment runs without it.
const CHART_GROUPS: &[Group] = &[
    Group {
        name: "helm",
        module: "helm.sh/helm/v4",
        programs: &[Program {
            name: "helm",
            package: "helm.sh/helm/v4/cmd/helm",
        }],
        manifests: &[],
        link: &[("helm.sh/helm/v4/internal/version.version", "{version}")],
    },
    Group {
        name: "helm3",
        module: "helm.sh/helm/v3",
        programs: &[Program {
            name: "helm3",
            package: "helm.sh/helm/v3/cmd/helm",
        }],
        manifests: &[],
        link: &[
            ("helm.sh/helm/v3/internal/version.version", "{version}"),
            // Without a cluster to ask it would take every chart for one of Kubernetes 1.20.
            ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", "36"),
        ],
    },
    PROMETHEUS_OPERATOR_CRDS,
];

const PROMETHEUS_OPERATOR_CRDS: Group = Group {
    name: "prometheus-operator",
    module: "github.com/prometheus-operator/prometheus-operator",
    programs: &[],
    manifests: &["example/prometheus-operator-crd", "example/rbac/prometheus-operator"],
    link: &[],
};

/// The Prometheus operator itself, for the one test that runs it: all others need no more than its CRDs, and its build takes
/// longer than they do.
const PROMETHEUS_OPERATOR_GROUPS: &[Group] = &[Group {
    programs: &[Program {
        name: "prometheus-operator",
        package: "github.com/prometheus-operator/prometheus-operator/cmd/operator",
    }],
    ..PROMETHEUS_OPERATOR_CRDS
}];

/// Free space that a cold build needs: the Go caches grow to about 13 GB, the programs to half a gigabyte.
const SPACE_TO_BUILD: u64 = 16 << 30;
/// The same for a node, whose programs share most of their code with the control plane.
const SPACE_TO_BUILD_FOR_NODE: u64 = 4 << 30;
/// The same for what the chart needs: Helm shares most of its dependencies with nobody, but is small.
const SPACE_TO_BUILD_FOR_CHART: u64 = 4 << 30;
/// Free space that a running environment needs for its data and logs.
const SPACE_TO_RUN: u64 = 2 << 30;

/// The programs, built.
#[derive(Debug, Clone, Default)]
pub struct Toolbox {
    programs: BTreeMap<&'static str, PathBuf>,
    versions: BTreeMap<&'static str, String>,
    manifests: BTreeMap<&'static str, PathBuf>,
}

impl Toolbox {
    pub fn program(&self, name: &str) -> Result<&Path> {
        self.programs
            .get(name)
            .map(PathBuf::as_path)
            .with_context(|| format!("{name} is not among the tools"))
    }

    /// The pinned version of a program; empty for one that is not among the tools.
    pub fn version(&self, program: &str) -> &str {
        self.versions.get(program).map_or("", String::as_str)
    }

    /// The YAML files of a manifest directory of a group, in order.
    pub fn manifests(&self, group: &str, dir: &str) -> Result<Vec<PathBuf>> {
        let root = self
            .manifests
            .get(group)
            .with_context(|| format!("{group} has no manifests"))?;
        crate::manifests::files(&root.join(dir))
    }

    /// The directories that hold the programs, for a `PATH`.
    pub fn directories(&self) -> Vec<&Path> {
        let mut dirs: Vec<&Path> = self.programs.values().filter_map(|program| program.parent()).collect();
        dirs.dedup();
        dirs
    }

    /// Finds every program of the environment in the cache and builds those that are missing.
    pub async fn ready(cache: &Path) -> Result<Self> {
        Self::of(GROUPS, SPACE_TO_BUILD, cache).await
    }

    /// The same with a node's programs.
    pub async fn with_node(cache: &Path) -> Result<Self> {
        let mut tools = Self::ready(cache).await?;
        let node = Self::of(NODE_GROUPS, SPACE_TO_BUILD_FOR_NODE, cache).await?;
        tools.programs.extend(node.programs);
        tools.versions.extend(node.versions);
        Ok(tools)
    }

    /// The same for what the chart needs: Helm, and the CRDs of the Prometheus operator.
    pub async fn for_chart(cache: &Path) -> Result<Self> {
        Self::of(CHART_GROUPS, SPACE_TO_BUILD_FOR_CHART, cache).await
    }

    /// The same for the Prometheus operator, with its CRDs and the permissions that it asks for.
    pub async fn prometheus_operator(cache: &Path) -> Result<Self> {
        Self::of(PROMETHEUS_OPERATOR_GROUPS, SPACE_TO_BUILD_FOR_CHART, cache).await
    }

    async fn of(groups: &'static [Group], space_to_build: u64, cache: &Path) -> Result<Self> {
        let tools = cache.join("tools");
        fs::create_dir_all(&tools).with_context(|| format!("cannot create the tool cache {}", tools.display()))?;
        let mut pins = Vec::new();
        for group in groups {
            pins.push((group, Pin::read(group)?));
        }
        let mut missing: Vec<(&Group, &Pin, &Program)> = Vec::new();
        for (group, pin) in &pins {
            missing.extend(
                group
                    .programs
                    .iter()
                    .filter(|p| !pin.program(&tools, p).exists())
                    .map(|p| (*group, pin, p)),
            );
        }
        let incomplete = pins
            .iter()
            .any(|(group, pin)| !group.manifests.is_empty() && !pin.manifests(&tools).exists());
        if missing.is_empty() && !incomplete {
            check_space(cache, SPACE_TO_RUN)?;
        } else {
            check_space(cache, space_to_build)?;
            check_go().await?;
            // Two environments that start on a cold machine must not build the same thing twice.
            let lock = fs::File::create(tools.join("lock"))?;
            let _lock = tokio::task::spawn_blocking(move || Flock::lock(lock, FlockArg::LockExclusive))
                .await?
                .map_err(|(_, errno)| errno)
                .context("cannot lock the tool cache")?;
            let total = missing.len();
            if total > 0 {
                println!(
                    "Building {total} programs from pinned Go modules; about {} minutes on two cores, once per pin.",
                    2 * total
                );
            }
            for (index, (group, pin, program)) in missing.into_iter().enumerate() {
                if pin.program(&tools, program).exists() {
                    continue;
                }
                let step = Step::start(format!(
                    "[{}/{total}] build {} {}",
                    index + 1,
                    program.name,
                    pin.version
                ));
                pin.build(&tools, group, program).await?;
                step.done();
            }
            for (group, pin) in &pins {
                if !group.manifests.is_empty() && !pin.manifests(&tools).exists() {
                    pin.copy_manifests(&tools, group).await?;
                }
            }
        }
        let mut toolbox = Self::default();
        for (group, pin) in &pins {
            for program in group.programs {
                toolbox.programs.insert(program.name, pin.program(&tools, program));
                toolbox.versions.insert(program.name, pin.version.clone());
            }
            toolbox.manifests.insert(group.name, pin.manifests(&tools));
        }
        Ok(toolbox)
    }
}

/// One group at one version.
struct Pin {
    version: String,
    link: String,
    /// Names the group's directory in the cache; changes with anything that could change a binary.
    key: String,
}

impl Pin {
    fn read(group: &Group) -> Result<Self> {
        let source = source(group);
        let go_mod = fs::read_to_string(source.join("go.mod"))
            .with_context(|| format!("the pins are missing: cannot read {}/go.mod", source.display()))?;
        let go_sum = fs::read(source.join("go.sum"))
            .with_context(|| format!("the pins are missing: cannot read {}/go.sum", source.display()))?;
        let version = version_in(&go_mod, group.module)
            .with_context(|| format!("e2e/tools/{}/go.mod names no version of {}", group.name, group.module))?;
        let minor = version.split('.').nth(1).unwrap_or_default();
        let link = group
            .link
            .iter()
            .fold(String::from("-s -w"), |flags, (variable, value)| {
                format!(
                    "{flags} -X {variable}={}",
                    value.replace("{version}", &version).replace("{minor}", minor)
                )
            });
        let mut hash = Sha256::new();
        for part in [
            go_mod.as_bytes(),
            &go_sum,
            link.as_bytes(),
            std::env::consts::ARCH.as_bytes(),
        ] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest: String = hash
            .finalize()
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let key = format!("{}-{version}-{digest}", group.name);
        Ok(Self { version, link, key })
    }

    fn program(&self, tools: &Path, program: &Program) -> PathBuf {
        tools.join(&self.key).join("bin").join(program.name)
    }

    fn manifests(&self, tools: &Path) -> PathBuf {
        tools.join(&self.key).join("manifests")
    }

    async fn build(&self, tools: &Path, group: &Group, program: &Program) -> Result<()> {
        let target = self.program(tools, program);
        let unfinished = target.with_extension("building");
        if let Some(dir) = target.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut go = Command::new("go");
        go.current_dir(source(group)).env("CGO_ENABLED", "0").args([
            "build",
            "-trimpath",
            "-ldflags",
            &self.link,
            "-o",
        ]);
        go.arg(&unfinished).arg(program.package);
        run_go(go)
            .await
            .with_context(|| format!("cannot build {} {}", program.name, self.version))?;
        // Renamed when whole: an interrupted build never looks like a finished one.
        fs::rename(&unfinished, &target)?;
        Ok(())
    }

    /// Manifests are copied beside the binaries, so that the Go module cache can be dropped.
    async fn copy_manifests(&self, tools: &Path, group: &Group) -> Result<()> {
        // Where no program was built from the module, nothing has fetched it yet.
        let mut go = Command::new("go");
        go.current_dir(source(group))
            .args(["mod", "download", module_path(group)]);
        run_go(go).await.context("cannot fetch a Go module")?;
        let mut go = Command::new("go");
        go.current_dir(source(group))
            .args(["list", "-m", "-f", "{{.Dir}}", module_path(group)]);
        let dir = PathBuf::from(
            run_go(go)
                .await
                .context("cannot find a module in the Go module cache")?
                .trim(),
        );
        let target = self.manifests(tools);
        let unfinished = target.with_extension("copying");
        for manifest in group.manifests {
            let (from, to) = (dir.join(manifest), unfinished.join(manifest));
            fs::create_dir_all(&to)?;
            for entry in fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))? {
                let entry = entry?;
                // Written anew instead of copied: the module cache is read-only, and so would be the copy.
                fs::write(to.join(entry.file_name()), fs::read(entry.path())?)?;
            }
        }
        fs::rename(&unfinished, &target)?;
        Ok(())
    }
}

fn source(group: &Group) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tools").join(group.name)
}

/// The path under which Go knows the module: a replaced module keeps the name that it is imported by.
fn module_path(group: &Group) -> &'static str {
    match group.name {
        "provider-terraform" => "github.com/upbound/provider-terraform",
        _ => group.module,
    }
}

fn version_in(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != module);
        words.next()?;
        words.next().filter(|word| word.starts_with('v')).map(str::to_owned)
    })
}

async fn check_go() -> Result<()> {
    let mut go = Command::new("go");
    go.args(["env", "GOVERSION"]);
    let version = run_go(go).await?;
    let minor: u32 = version
        .trim()
        .strip_prefix("go1.")
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
        .unwrap_or_default();
    if minor < 26 {
        bail!(
            "Go 1.26 or newer builds the environment's programs, but `go` is {}: install a newer one",
            version.trim()
        );
    }
    Ok(())
}

/// Runs Go in a process group of its own and takes the whole group down when the caller is interrupted:
/// killing `go` alone would leave its compilers running.
async fn run_go(mut command: Command) -> Result<String> {
    struct Group(Option<u32>);
    impl Drop for Group {
        fn drop(&mut self) {
            if let Some(pid) = self.0.and_then(|pid| i32::try_from(pid).ok()) {
                // Already ended is as good as ended now.
                let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = match child {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!(
                "Go is not installed: the environment's programs are built from Go modules; install Go 1.26 or newer and put `go` on PATH"
            )
        }
        other => other.context("cannot start go")?,
    };
    let mut guard = Group(child.id());
    let output = child.wait_with_output().await?;
    guard.0 = None;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<&str> = said.lines().rev().take(15).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
    if [
        "dial tcp",
        "no such host",
        "proxyconnect",
        "connection refused",
        "i/o timeout",
    ]
    .iter()
    .any(|sign| said.contains(sign))
    {
        bail!(
            "the Go module proxy cannot be reached: check the network and `go env GOPROXY`, then run it again; what is built already is kept\n{tail}"
        );
    }
    if said.contains("no space left on device") {
        bail!(
            "the disk is full: free some space (`go clean -cache -modcache` drops what Go can fetch and build again), then run it again\n{tail}"
        );
    }
    bail!("go failed ({}):\n{tail}", output.status)
}

fn check_space(dir: &Path, needed: u64) -> Result<()> {
    let stat = nix::sys::statvfs::statvfs(dir)
        .with_context(|| format!("cannot ask for the free space of {}", dir.display()))?;
    let free = stat.blocks_available() as u64 * stat.fragment_size() as u64;
    if free < needed {
        bail!(
            "{} has {:.1} GB free, and {:.0} GB are needed: free some space (`go clean -cache -modcache` drops what Go can fetch and build again), \
             or point CAPT_CACHE_DIR, GOCACHE and GOMODCACHE to a larger disk",
            dir.display(),
            free as f64 / 1e9,
            needed as f64 / 1e9,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_comes_from_the_pin() {
        let go_mod = "module x\nrequire a.io/b v1.2.3\nreplace a.io/c => d.io/c v0.9.0\nrequire (\n\ta.io/e v2.0.0 // indirect\n)\n";
        assert_eq!(version_in(go_mod, "a.io/b").as_deref(), Some("v1.2.3"));
        assert_eq!(version_in(go_mod, "d.io/c").as_deref(), Some("v0.9.0"));
        assert_eq!(version_in(go_mod, "a.io/e").as_deref(), Some("v2.0.0"));
        assert_eq!(version_in(go_mod, "a.io/c"), None);
        assert_eq!(version_in(go_mod, "a.io"), None);
    }

    #[test]
    fn every_group_is_pinned() {
        let all = [GROUPS, NODE_GROUPS, CHART_GROUPS, PROMETHEUS_OPERATOR_GROUPS];
        for group in all.into_iter().flatten() {
            let pin = Pin::read(group).unwrap();
            assert!(pin.key.starts_with(&format!("{}-v", group.name)), "{}", pin.key);
        }
    }

    #[test]
    fn a_full_disk_is_said_with_a_way_out() {
        let error = check_space(Path::new("/"), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("GB free") && error.contains("CAPT_CACHE_DIR"), "{error}");
    }
}
