//! `make demo`: a cluster coming up before your eyes, and `make demo-delete`: the same cluster going.
//!
//! What is shown is what any user can see: the conditions of the Cluster, the CAPTCluster and the CAPTControlPlane.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, DynamicObject};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use serde_json::Value;

use crate::environment::Environment;
use crate::manifests;
use crate::pki::write_private;
use crate::progress::elapsed;
use crate::tools::Toolbox;
use crate::{cloud, up};

const NAMESPACE: &str = "default";
const NAME: &str = "demo";
/// It takes a quarter of a minute; a machine that needs ten has another problem.
const PATIENCE: Duration = Duration::from_secs(600);

/// An object whose conditions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Cluster,
    Network,
    ControlPlane,
}

impl Subject {
    const ALL: [Self; 3] = [Self::Cluster, Self::Network, Self::ControlPlane];

    fn resource(self) -> ApiResource {
        let (group, version, kind) = match self {
            Self::Cluster => ("cluster.x-k8s.io", "v1beta2", "Cluster"),
            Self::Network => ("infrastructure.cluster.x-k8s.io", "v1beta1", "CAPTCluster"),
            Self::ControlPlane => ("controlplane.cluster.x-k8s.io", "v1beta1", "CAPTControlPlane"),
        };
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
    }

    fn api(self, client: &Client) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), NAMESPACE, &self.resource())
    }
}

/// A step of the story: it is done when the condition is true.
struct Chapter {
    title: &'static str,
    subject: Subject,
    condition: &'static str,
}

const STORY: &[Chapter] = &[
    Chapter {
        title: "network, by Terraform",
        subject: Subject::Network,
        condition: "Ready",
    },
    Chapter {
        title: "endpoint",
        subject: Subject::ControlPlane,
        condition: "EndpointReady",
    },
    Chapter {
        title: "kubeconfig",
        subject: Subject::ControlPlane,
        condition: "SecretsReady",
    },
    Chapter {
        title: "control plane, by Terraform",
        subject: Subject::ControlPlane,
        condition: "Ready",
    },
    Chapter {
        title: "Cluster API calls it Available",
        subject: Subject::Cluster,
        condition: "Available",
    },
];

/// What is known of the subjects; an absent one is gone, or not there yet.
type Known = BTreeMap<Subject, DynamicObject>;

/// Applies the example and shows the cluster coming up.
pub async fn create(environment: &Environment, tools: &Toolbox) -> Result<()> {
    let client = up::client(&environment.kubeconfig()).await?;
    for object in manifests::read(&example())? {
        manifests::apply(&client, vec![object])
            .await
            .context("cannot apply docs/examples/local/cluster.yaml")?;
    }
    println!("\nCluster {NAMESPACE}/{NAME} is applied; this is what happens to it:\n");
    follow(
        &client,
        |known| STORY.iter().map(|chapter| chapter.line(known)).collect(),
        |known| STORY.iter().all(|c| c.done(known)),
    )
    .await?;

    println!();
    show(
        environment,
        tools,
        "clusterctl",
        &["describe", "cluster", NAME, "--namespace", NAMESPACE],
    )
    .await?;
    show(
        environment,
        tools,
        "kubectl",
        &["get", "captcluster,captcontrolplane,wtapply,workspaces.tf.upbound.io"],
    )
    .await?;
    let kubeconfig = workload_kubeconfig(&client, environment).await?;
    let kubeconfig = kubeconfig.display().to_string();
    show(
        environment,
        tools,
        "kubectl",
        &["--kubeconfig", &kubeconfig, "get", "namespaces"],
    )
    .await?;
    println!(
        "That was the new cluster's own API server. Try next:\n\n    \
         export KUBECONFIG={}\n    \
         kubectl patch captcontrolplane {NAME} --type=merge -p '{{\"spec\":{{\"version\":\"1.32\"}}}}'   # an upgrade\n    \
         kubectl patch captcontrolplane {NAME} --type=merge -p '{{\"spec\":{{\"variables\":{{\"fault_apply\":\"quota exceeded\"}}}}}}'   # break it\n    \
         kubectl describe captcontrolplane {NAME}\n    \
         make cloud          # what Terraform has made\n    \
         make demo-delete    # and how it goes\n",
        environment.kubeconfig().display(),
    );
    Ok(())
}

/// Deletes the example's Cluster and shows everything going, in order.
pub async fn delete(environment: &Environment) -> Result<()> {
    let client = up::client(&environment.kubeconfig()).await?;
    let cluster = Subject::Cluster.api(&client);
    if cluster.get_opt(NAME).await?.is_none() {
        bail!("there is no Cluster {NAMESPACE}/{NAME}: `make demo` makes one");
    }
    cluster.delete(NAME, &DeleteParams::background()).await?;
    println!("\nCluster {NAMESPACE}/{NAME} is being deleted; this is what happens to it:\n");
    let lines = |known: &Known| {
        let subjects = [
            ("control plane", Subject::ControlPlane),
            ("network", Subject::Network),
            ("Cluster", Subject::Cluster),
        ];
        subjects
            .into_iter()
            .map(|(title, subject)| going(title, known.get(&subject)))
            .collect()
    };
    follow(&client, lines, |known| known.is_empty()).await?;
    println!("\nWhat is left in the local cloud:");
    cloud::run(environment, cloud::Command::List { json: false }).await
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/local/cluster.yaml")
}

/// A line of the view: whether it is done, what it is, and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    done: bool,
    title: &'static str,
    detail: String,
}

impl Chapter {
    fn condition<'a>(&self, known: &'a Known) -> Option<&'a Value> {
        let conditions = known
            .get(&self.subject)?
            .data
            .pointer("/status/conditions")?
            .as_array()?;
        conditions
            .iter()
            .find(|condition| condition.get("type").and_then(Value::as_str) == Some(self.condition))
    }

    fn done(&self, known: &Known) -> bool {
        self.condition(known)
            .and_then(|condition| condition.get("status"))
            .and_then(Value::as_str)
            == Some("True")
    }

    fn line(&self, known: &Known) -> Line {
        let text = |key| {
            self.condition(known)
                .and_then(|condition| condition.get(key))
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let detail = match (text("reason"), text("message")) {
            ("", _) => "not yet".to_owned(),
            (reason, "") => reason.to_owned(),
            (reason, message) => format!("{reason}: {message}"),
        };
        Line {
            done: self.done(known),
            title: self.title,
            detail: detail.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }
}

fn going(title: &'static str, object: Option<&DynamicObject>) -> Line {
    let Some(object) = object else {
        return Line {
            done: true,
            title,
            detail: "gone".into(),
        };
    };
    let deleting = Chapter {
        title,
        subject: Subject::Cluster,
        condition: "Deleting",
    };
    let line = deleting.line(&Known::from([(Subject::Cluster, object.clone())]));
    let waits = object.metadata.deletion_timestamp.is_none();
    Line {
        done: false,
        title,
        detail: if waits {
            "waits for its turn".into()
        } else {
            line.detail
        },
    }
}

/// Watches the subjects and shows them until the story has ended.
async fn follow(client: &Client, lines: impl Fn(&Known) -> Vec<Line>, ended: impl Fn(&Known) -> bool) -> Result<()> {
    let watches = Subject::ALL.map(|subject| watch(client, subject));
    let mut events = stream::select_all(watches);
    let mut view = View::new();
    let (mut known, mut listed) = (Known::new(), 0);
    let mut ticks = tokio::time::interval(Duration::from_millis(250));
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        tokio::select! {
            Some(event) = events.next() => match event {
                (subject, Ok(Event::Apply(object) | Event::InitApply(object))) => drop(known.insert(subject, object)),
                (subject, Ok(Event::Delete(_))) => drop(known.remove(&subject)),
                (_, Ok(Event::InitDone)) => listed += 1,
                (_, Ok(Event::Init)) => {}
                (_, Err(error)) => return Err(error).context("the API server cannot be watched"),
            },
            _ = ticks.tick() => {}
            () = tokio::time::sleep_until(deadline) => bail!("not finished after {}; `make status` and `make logs` may tell why", elapsed(PATIENCE)),
        }
        if listed < Subject::ALL.len() {
            continue;
        }
        view.show(&lines(&known));
        if ended(&known) {
            return Ok(());
        }
    }
}

fn watch(client: &Client, subject: Subject) -> BoxStream<'static, (Subject, watcher::Result<Event<DynamicObject>>)> {
    let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    watcher::watcher(subject.api(client), config)
        .default_backoff()
        .map(move |event| (subject, event))
        .boxed()
}

/// Draws in a terminal; in a pipe it prints what changed.
struct View {
    began: Instant,
    shown: Vec<Line>,
    finished: BTreeMap<&'static str, Duration>,
    terminal: bool,
    width: usize,
}

impl View {
    fn new() -> Self {
        let width = std::env::var("COLUMNS")
            .ok()
            .and_then(|columns| columns.parse().ok())
            .unwrap_or(120);
        Self {
            began: Instant::now(),
            shown: Vec::new(),
            finished: BTreeMap::new(),
            terminal: std::io::stdout().is_terminal(),
            width,
        }
    }

    fn show(&mut self, lines: &[Line]) {
        for line in lines.iter().filter(|line| line.done) {
            self.finished.entry(line.title).or_insert_with(|| self.began.elapsed());
        }
        if self.terminal {
            if !self.shown.is_empty() {
                print!("\x1b[{}A", self.shown.len());
            }
            for line in lines {
                println!("\x1b[2K{}", self.text(line));
            }
            // A terminal that went away is no reason to stop the work.
            let _ = std::io::stdout().flush();
        } else {
            for (index, line) in lines.iter().enumerate() {
                if self.shown.get(index) != Some(line) {
                    println!("{}", self.text(line));
                }
            }
        }
        self.shown = lines.to_vec();
    }

    fn text(&self, line: &Line) -> String {
        let (mark, time) = match self.finished.get(line.title).filter(|_| line.done) {
            Some(time) => ("ok", elapsed(*time)),
            None => ("..", elapsed(self.began.elapsed())),
        };
        let text = format!("  {mark}  {:<32}{time:>7}  {}", line.title, line.detail);
        text.chars().take(self.width).collect()
    }
}

/// Runs a program as a user would, and shows both the command and what it says.
async fn show(environment: &Environment, tools: &Toolbox, program: &str, arguments: &[&str]) -> Result<()> {
    println!("$ {program} {}", arguments.join(" "));
    let status = tokio::process::Command::new(tools.program(program)?)
        .args(arguments)
        .env("KUBECONFIG", environment.kubeconfig())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .status()
        .await
        .with_context(|| format!("cannot run {program}"))?;
    println!();
    if !status.success() {
        bail!("{program} {} failed", arguments.join(" "));
    }
    Ok(())
}

/// The kubeconfig that Cluster API's contract asks for, as a file.
async fn workload_kubeconfig(client: &Client, environment: &Environment) -> Result<PathBuf> {
    let name = format!("{NAME}-kubeconfig");
    let secret = Api::<Secret>::namespaced(client.clone(), NAMESPACE)
        .get(&name)
        .await
        .with_context(|| format!("there is no Secret {name}"))?;
    let value = secret
        .data
        .unwrap_or_default()
        .remove("value")
        .with_context(|| format!("the Secret {name} has no key `value`"))?;
    let path = environment.path(format!("{NAME}.kubeconfig"));
    write_private(&path, &String::from_utf8(value.0)?)?;
    Ok(path)
}
