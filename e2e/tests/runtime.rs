//! The life of a controller process on the real API server: caches, queue, HTTP server, leadership and shutdown together.

mod gate;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use capt_api::names::{Manager, label};
use capt_e2e::testing;
use capt_runtime::{
    app::{self, Setup},
    args::CommonArgs,
    cache::{Cache, Found, Index},
    controller::{Reconciler, Wake},
    error::Failure,
    events::{Events, Severity},
    key::Key,
    telemetry::{self, LogFormat, LogLevel},
    watch::Watch,
};
use clap::Parser;
use gate::{Door, Gate};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Secret, ServiceAccount},
        events::v1::Event,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Object, PartialObjectMeta, Patch, PatchParams,
        PostParams,
    },
    config::Kubeconfig,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Long enough for a busy machine; reached only by a failing test.
const PATIENCE: Duration = Duration::from_secs(300);
const LEASE: &str = "capt-workspace-controller";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    common: CommonArgs,
}

/// Logging can be set up once per process, and all tests share one.
fn log_level() -> Result<Arc<LogLevel>> {
    static LOG_LEVEL: OnceLock<Option<Arc<LogLevel>>> = OnceLock::new();
    let level = LOG_LEVEL.get_or_init(|| telemetry::init(LogFormat::Text, "info").ok().map(Arc::new));
    level.clone().context("logging cannot be set up")
}

/// A running controller process, as far as one can run inside a test.
struct Process {
    address: SocketAddr,
    stop: CancellationToken,
    ended: JoinHandle<Result<()>>,
}

impl Process {
    /// Starts with `flags`; what `wire` returns comes back, with the process.
    async fn start<T: Send + 'static>(
        flags: &[&str],
        wire: impl FnOnce(&mut Setup) -> T + Send + 'static,
    ) -> Result<(Self, T)> {
        let common = ["capt", "--metrics-bind-address", "127.0.0.1:0"];
        let args = Cli::try_parse_from([&common, flags].concat())?.common;
        let log_level = log_level()?;
        let stop = CancellationToken::new();
        let (sender, mut wired) = mpsc::channel(1);
        let ended = tokio::spawn({
            let stop = stop.clone();
            async move {
                let wire = move |setup: &mut Setup| {
                    let made = wire(setup);
                    let _ = sender.try_send((setup.address(), made));
                    Ok(())
                };
                app::run_until(Manager::Workspace, &args, log_level, wire, stop.cancelled_owned()).await
            }
        });
        let Some((address, made)) = wired.recv().await else {
            ended.await??;
            bail!("ended before it was wired");
        };
        Ok((Self { address, stop, ended }, made))
    }

    async fn get(&self, path: &str) -> Result<(u16, String)> {
        http(self.address, "GET", path, "").await
    }

    async fn ready(&self) -> Result<()> {
        eventually("ready", || async { Ok(self.get("/readyz").await?.0 == 200) }).await
    }

    async fn stop(self) -> Result<()> {
        self.stop.cancel();
        timeout(PATIENCE, self.ended).await.context("does not stop")??
    }
}

/// The flags of a process that works and elects in this namespace. Its Lease lasts so long that no machine is too slow to
/// keep it, and is looked at often.
fn electing(namespace: &str) -> Vec<&str> {
    let mut flags = vec!["--namespace", namespace, "--leader-elect-namespace", namespace];
    flags.extend(["--lease-duration", "20m", "--renew-deadline", "15m"]);
    flags.extend(["--retry-period", "500ms"]);
    flags
}

async fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no body")?;
    let code = head.split_whitespace().nth(1).context("no status")?.parse()?;
    Ok((code, body.to_string()))
}

/// For states that only polling shows, such as an HTTP endpoint's answer.
async fn eventually<F: Future<Output = Result<bool>>>(what: &str, mut check: impl FnMut() -> F) -> Result<()> {
    let poll = async {
        while !check().await? {
            sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    timeout(PATIENCE, poll)
        .await
        .with_context(|| format!("never: {what}"))?
}

/// Reports every pass, and finishes it when the door is open.
struct Recorder {
    passes: mpsc::UnboundedSender<Key>,
    open: watch::Receiver<bool>,
    finished: Arc<AtomicUsize>,
}

impl Reconciler for Recorder {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        let _ = self.passes.send(key.clone());
        let _ = self.open.clone().wait_for(|open| *open).await;
        self.finished.fetch_add(1, Ordering::SeqCst);
        Ok(Wake::OnEvent)
    }
}

/// What a test holds of a controller of ConfigMaps.
struct Maps {
    cache: Cache<ConfigMap>,
    by_colour: Index<ConfigMap, String>,
    passes: mpsc::UnboundedReceiver<Key>,
    open: watch::Sender<bool>,
    finished: Arc<AtomicUsize>,
}

impl Maps {
    fn wire(setup: &mut Setup, open: bool) -> Self {
        let queue = setup.queue("configmap");
        let mut watch = Watch::<ConfigMap>::namespaced(setup.client(), setup.scope(), &()).filtered(setup.scope());
        // Every namespace has one of these, made by the control plane.
        watch = watch.labels("test");
        let by_colour =
            watch.index(|map: &ConfigMap| map.data.iter().filter_map(|data| data.get("colour").cloned()).collect());
        watch.notify(&queue);
        let cache = setup.start(watch);
        let (sender, passes) = mpsc::unbounded_channel();
        let finished = Arc::new(AtomicUsize::new(0));
        let open = watch::Sender::new(open);
        let recorder = Recorder {
            passes: sender,
            open: open.subscribe(),
            finished: finished.clone(),
        };
        setup.controller("configmap", queue, &cache, recorder);
        Self {
            cache,
            by_colour,
            passes,
            open,
            finished,
        }
    }

    async fn next_pass(&mut self) -> Result<Key> {
        timeout(PATIENCE, self.passes.recv())
            .await
            .context("no pass")?
            .context("the controller ended")
    }

    fn names(&self, colour: &str) -> Vec<String> {
        let found = self.by_colour.get(&colour.to_string());
        found.iter().map(|map| map.name_any()).collect()
    }
}

/// A ConfigMap of these tests; `team` is its watch-filter.
fn map(name: &str, colour: &str, team: Option<&str>) -> Result<ConfigMap> {
    let mut labels = BTreeMap::from([("test", "yes")]);
    labels.extend(team.map(|team| (label::WATCH_FILTER, team)));
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "data": {"colour": colour},
    }))?)
}

async fn create(api: &Api<ConfigMap>, map: &ConfigMap) -> Result<()> {
    api.create(&PostParams::default(), map).await?;
    Ok(())
}

#[tokio::test]
async fn caches_and_indexes_follow_the_server_within_their_scope() -> Result<()> {
    let client = testing::client().await?;
    let here = testing::namespace(&client, "rt-here").await?;
    let elsewhere = testing::namespace(&client, "rt-else").await?;
    let ours = Some("blue-team");
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &here);
    create(&api, &map("a", "red", ours)?).await?;
    create(&api, &map("theirs", "red", Some("green-team"))?).await?;
    create(&api, &map("nobodys", "red", None)?).await?;
    create(&Api::namespaced(client.clone(), &elsewhere), &map("far", "red", ours)?).await?;

    let flags = [
        "--leader-elect=false",
        "--namespace",
        &here,
        "--watch-filter",
        "blue-team",
    ];
    let (process, mut maps) = Process::start(&flags, |setup| Maps::wire(setup, true)).await?;
    assert_eq!(maps.next_pass().await?, Key::namespaced(&here, "a"));
    assert_eq!(maps.names("red"), ["a"]);
    let a = maps.cache.get(&Key::namespaced(&here, "a")).context("a")?;
    assert!(a.metadata.managed_fields.is_none());
    let copy = a.annotations().get("kubectl.kubernetes.io/last-applied-configuration");
    assert_eq!(
        copy.map(String::as_str),
        Some(""),
        "the copy is dropped, its place stays"
    );

    create(&api, &map("b", "red", ours)?).await?;
    assert_eq!(maps.next_pass().await?, Key::namespaced(&here, "b"));
    assert_eq!(maps.names("red"), ["a", "b"]);

    let blue = Patch::Merge(json!({"data": {"colour": "blue"}}));
    api.patch("a", &PatchParams::default(), &blue).await?;
    assert_eq!(maps.next_pass().await?, Key::namespaced(&here, "a"));
    assert_eq!(
        (maps.names("red"), maps.names("blue")),
        (vec!["b".into()], vec!["a".into()])
    );

    // An object that is taken out of our care leaves the cache like a deleted one.
    let taken = Patch::Merge(json!({"metadata": {"labels": {label::WATCH_FILTER: "green-team"}}}));
    api.patch("a", &PatchParams::default(), &taken).await?;
    assert_eq!(maps.next_pass().await?, Key::namespaced(&here, "a"));
    assert!(maps.cache.get(&Key::namespaced(&here, "a")).is_none());

    api.delete("b", &DeleteParams::default()).await?;
    assert_eq!(maps.next_pass().await?, Key::namespaced(&here, "b"));
    assert!(maps.cache.keys().is_empty() && maps.names("red").is_empty());
    process.stop().await
}

/// The kubeconfig of the environment, but through `gate`.
async fn kubeconfig_through(gate: &Gate) -> Result<tempfile::NamedTempFile> {
    let config = gate.config(&Config::infer().await?)?;
    let mut file = Kubeconfig::read()?;
    for cluster in &mut file.clusters {
        if let Some(cluster) = &mut cluster.cluster {
            cluster.server = Some(config.cluster_url.to_string());
            cluster.tls_server_name = config.tls_server_name.clone();
        }
    }
    let written = tempfile::NamedTempFile::new()?;
    std::fs::write(written.path(), serde_json::to_string(&file)?)?;
    Ok(written)
}

#[tokio::test]
async fn what_vanished_while_the_server_was_away_is_told() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-away").await?;
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    for name in ["gone", "kept"] {
        create(&api, &map(name, "red", None)?).await?;
    }
    let gate = Gate::new(&Config::infer().await?).await?;
    let kubeconfig = kubeconfig_through(&gate).await?;
    let path = kubeconfig.path().to_string_lossy().into_owned();
    let flags = ["--leader-elect=false", "--namespace", &namespace, "--kubeconfig", &path];
    let (process, mut maps) = Process::start(&flags, |setup| Maps::wire(setup, true)).await?;
    let mut first = [maps.next_pass().await?, maps.next_pass().await?];
    first.sort();
    assert_eq!(
        first,
        [Key::namespaced(&namespace, "gone"), Key::namespaced(&namespace, "kept")]
    );

    gate.set(Door::Refusing);
    api.delete("gone", &DeleteParams::default()).await?;
    create(&api, &map("new", "red", None)?).await?;
    // So many failures that the watch starts over with a list, which no longer has the deleted object.
    let failures = |text: &str| -> Option<u64> {
        let line = text
            .lines()
            .find(|line| line.starts_with(r#"capt_watch_errors_total{watch="ConfigMap"}"#))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    eventually("eight failures", || async {
        Ok(failures(&process.get("/metrics").await?.1).is_some_and(|count| count >= 8))
    })
    .await?;
    gate.set(Door::Open);
    let mut told = [maps.next_pass().await?, maps.next_pass().await?];
    told.sort();
    assert_eq!(
        told,
        [Key::namespaced(&namespace, "gone"), Key::namespaced(&namespace, "new")]
    );
    assert_eq!(maps.names("red"), ["kept", "new"]);
    let (_, metrics) = process.get("/metrics").await?;
    assert!(
        metrics.contains(r#"capt_watch_relists_total{watch="ConfigMap"} 2"#),
        "{metrics}"
    );
    assert!(
        process.get("/readyz").await?.0 == 200,
        "an outage does not make a process unready"
    );
    process.stop().await
}

/// A kind of this test's own.
struct Widgets {
    kind: ApiResource,
    crd: CustomResourceDefinition,
    crds: Api<CustomResourceDefinition>,
}

impl Widgets {
    async fn new(client: &Client, unique: &str) -> Result<Self> {
        // A group per run: an earlier run that was killed left its CRD behind.
        let run = testing::namespace(client, unique).await?;
        let group = format!("{run}.capt.test");
        let crd = serde_json::from_value(json!({
            "metadata": {"name": format!("widgets.{group}")},
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }}}],
            },
        }))?;
        Ok(Self {
            kind: ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(&group, "v1", "Widget"), "widgets"),
            crd,
            crds: Api::all(client.clone()),
        })
    }

    async fn install(&self) -> Result<()> {
        self.crds.create(&PostParams::default(), &self.crd).await?;
        eventually("CRD established", || async {
            let crd = self.crds.get(&self.crd.name_any()).await?;
            let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
            Ok(conditions
                .iter()
                .any(|c| c.type_ == "Established" && c.status == "True"))
        })
        .await
    }

    async fn remove(self) -> Result<()> {
        self.crds.delete(&self.crd.name_any(), &DeleteParams::default()).await?;
        Ok(())
    }

    fn named(&self, name: &str, size: Value) -> DynamicObject {
        DynamicObject::new(name, &self.kind).data(json!({"spec": {"size": size}}))
    }
}

#[tokio::test]
async fn a_crd_that_appears_later_is_waited_for_and_named() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-crd").await?;
    let widgets = Widgets::new(&client, "rt-late").await?;
    let kind = widgets.kind.clone();
    let flags = ["--leader-elect=false", "--namespace", &namespace];
    let (process, (cache, mut passes)) = Process::start(&flags, move |setup| {
        let queue = setup.queue("widget");
        let mut watch = Watch::<DynamicObject>::namespaced(setup.client(), setup.scope(), &kind);
        watch.notify(&queue);
        let cache = setup.start(watch);
        let (sender, passes) = mpsc::unbounded_channel();
        let recorder = Recorder {
            passes: sender,
            open: watch::Sender::new(true).subscribe(),
            finished: Arc::default(),
        };
        setup.controller("widget", queue, &cache, recorder);
        (cache, passes)
    })
    .await?;

    eventually("the missing CRD is named", || async {
        let (code, text) = process.get("/readyz").await?;
        Ok(code == 503 && text.contains("[-] watch Widget") && text.contains("CRD"))
    })
    .await?;
    assert_eq!(process.get("/healthz").await?.0, 200, "waiting is no illness");

    widgets.install().await?;
    process.ready().await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &widgets.kind);
    api.create(&PostParams::default(), &widgets.named("w", json!(1)))
        .await?;
    let key = timeout(PATIENCE, passes.recv()).await?.context("ended")?;
    assert_eq!(key, Key::namespaced(&namespace, "w"));
    assert!(cache.get(&key).is_some());
    process.stop().await?;
    widgets.remove().await
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Size {
    size: u32,
}

#[tokio::test]
async fn an_object_that_does_not_decode_leaves_the_others_in_peace() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-bad").await?;
    let widgets = Widgets::new(&client, "rt-odd").await?;
    widgets.install().await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &widgets.kind);
    for (name, size) in [("good", json!(1)), ("bad", json!("large"))] {
        api.create(&PostParams::default(), &widgets.named(name, size)).await?;
    }
    let kind = widgets.kind.clone();
    let flags = ["--leader-elect=false", "--namespace", &namespace];
    let (process, cache) = Process::start(&flags, move |setup| {
        setup.start(Watch::<Object<Size, Value>>::namespaced(
            setup.client(),
            setup.scope(),
            &kind,
        ))
    })
    .await?;
    process.ready().await?;
    let (good, bad) = (Key::namespaced(&namespace, "good"), Key::namespaced(&namespace, "bad"));
    let size = |key: &Key| cache.get(key).map(|object| object.spec.size);
    assert_eq!(size(&good), Some(1));
    assert!(matches!(cache.find(&bad), Found::Unreadable(why) if why.contains("large")));
    assert!(matches!(
        cache.find(&Key::namespaced(&namespace, "none")),
        Found::Absent
    ));
    let (_, metrics) = process.get("/metrics").await?;
    assert!(
        metrics.contains(r#"capt_watch_unreadable_objects{watch="Widget"} 1"#),
        "{metrics}"
    );

    // The watch lives: the good one may change, the bad one may be repaired, and a new bad one may come.
    api.create(&PostParams::default(), &widgets.named("bad2", json!(null)))
        .await?;
    for name in ["good", "bad"] {
        api.patch(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"size": 7}})),
        )
        .await?;
    }
    eventually("repaired", || async {
        Ok(size(&good) == Some(7) && size(&bad) == Some(7))
    })
    .await?;
    assert!(matches!(
        cache.find(&Key::namespaced(&namespace, "bad2")),
        Found::Unreadable(_)
    ));
    process.stop().await?;
    widgets.remove().await
}

#[tokio::test]
async fn a_metadata_cache_never_holds_contents() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-meta").await?;
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "s"}, "stringData": {"password": "p"}}))?;
    let made = Api::<Secret>::namespaced(client, &namespace)
        .create(&PostParams::default(), &secret)
        .await?;
    let flags = ["--leader-elect=false", "--namespace", &namespace];
    let (process, cache) = Process::start(&flags, |setup| {
        setup.start(Watch::<PartialObjectMeta<Secret>>::namespaced(
            setup.client(),
            setup.scope(),
            &(),
        ))
    })
    .await?;
    process.ready().await?;
    let seen = cache.get(&Key::namespaced(&namespace, "s")).context("s")?;
    assert_eq!(seen.metadata.resource_version, made.metadata.resource_version);
    let types = seen.types.as_ref().context("types")?;
    assert_eq!(
        types.kind, "PartialObjectMetadata",
        "the server was asked for metadata only"
    );
    process.stop().await
}

#[tokio::test]
async fn the_http_server_tells_health_metrics_and_log_level() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-http").await?;
    create(&Api::namespaced(client, &namespace), &map("a", "red", None)?).await?;
    let flags = electing(&namespace);
    let began = Instant::now();
    let (process, mut maps) = Process::start(&flags, |setup| Maps::wire(setup, true)).await?;
    maps.next_pass().await?;

    assert_eq!(process.get("/readyz").await?, (200, "ok\n".into()));
    assert_eq!(
        process.get("/readyz?verbose").await?,
        (200, "[+] watch ConfigMap: ready\n".into())
    );
    let (code, text) = process.get("/healthz?verbose").await?;
    assert_eq!(code, 200);
    for part in ["[+] watch ConfigMap: turning", "[+] controller configmap: turning"] {
        assert!(text.contains(part), "{text}");
    }

    let (code, metrics) = process.get("/metrics").await?;
    assert_eq!(code, 200);
    for line in [
        r#"controller_runtime_reconcile_total{controller="configmap",result="success"} 1"#,
        r#"controller_runtime_reconcile_errors_total{controller="configmap"} 0"#,
        r#"controller_runtime_reconcile_time_seconds_count{controller="configmap"} 1"#,
        r#"controller_runtime_max_concurrent_reconciles{controller="configmap"} 10"#,
        r#"workqueue_depth{controller="configmap",name="configmap"} 0"#,
        r#"workqueue_adds_total{controller="configmap",name="configmap"} 1"#,
        r#"leader_election_master_status{name="capt-workspace-controller"} 1"#,
        r#"capt_watch_objects{watch="ConfigMap"} 1"#,
        r#"rest_client_requests_total{code="200""#,
        "rest_client_request_duration_seconds_bucket",
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "process_open_fds ",
        "process_start_time_seconds ",
        "capt_build_info{version=",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
    let idle = metrics
        .lines()
        .find_map(|line| line.strip_prefix(r#"capt_watch_idle_seconds{watch="ConfigMap"} "#));
    assert!(idle.context("idle")?.parse::<f64>()? < began.elapsed().as_secs_f64());

    assert_eq!(process.get("/loglevel").await?, (200, "info\n".into()));
    let put = |level: &'static str| http(process.address, "PUT", "/loglevel", level);
    assert_eq!(
        put("info,capt_runtime=debug").await?,
        (200, "info,capt_runtime=debug\n".into())
    );
    let (code, text) = put("capt=loud").await?;
    assert!(code == 400 && text.contains("such as"), "{code} {text}");
    assert_eq!(
        process.get("/loglevel").await?.1,
        "info,capt_runtime=debug\n",
        "a bad level changes nothing"
    );
    assert_eq!(put("info").await?.0, 200);
    assert_eq!(put(&"x".repeat(10_000).leak()[..]).await?.0, 413);
    assert_eq!(process.get("/nothing").await?.0, 404);
    process.stop().await
}

/// A client of the metrics that sends this token, and takes any certificate: the controller made it itself.
fn scraper(address: SocketAddr, token: &str) -> Result<Client> {
    let mut config = Config::new(format!("https://{address}").parse()?);
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(token.to_owned().into());
    Ok(Client::try_from(config)?)
}

async fn scrape(client: &Client) -> Result<String, u16> {
    let request = http::Request::get("/metrics").body(Vec::new()).map_err(|_| 0_u16)?;
    client.request_text(request).await.map_err(|error| match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    })
}

#[tokio::test]
async fn secure_metrics_are_for_those_whom_the_api_server_lets_read_them() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "scrape").await?;
    let flags = [
        "--namespace",
        namespace.as_str(),
        "--leader-elect=false",
        "--metrics-secure-bind-address",
        "127.0.0.1:0",
    ];
    let (process, metrics) = Process::start(&flags, |setup| setup.metrics_address()).await?;
    assert_ne!(process.address, metrics);
    assert_eq!(
        process.get("/metrics").await?.0,
        404,
        "the open port has no metrics any more"
    );
    assert_eq!(process.get("/healthz").await?.0, 200);

    // A token of a service account, which the API server knows and has not permitted anything.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    accounts
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "scraper"}}))?,
        )
        .await?;
    let request = accounts
        .create_token_request(
            "scraper",
            &PostParams::default(),
            &serde_json::from_value(json!({"spec": {"audiences": []}}))?,
        )
        .await?;
    let token = request.status.context("no token")?.token;
    assert_eq!(scrape(&scraper(metrics, "nobody's")?).await, Err(401));
    assert_eq!(
        scrape(&scraper(metrics, token.as_deref().unwrap_or_default())?).await,
        Err(403)
    );

    let admin = testing::environment()?.settings()?.token("admin")?.to_owned();
    let text = scrape(&scraper(metrics, &admin)?)
        .await
        .map_err(|code| anyhow::anyhow!("refused: {code}"))?;
    assert!(text.contains("capt_build_info"), "{text}");
    process.stop().await
}

async fn lease_holder(client: &Client, namespace: &str) -> Result<String> {
    let lease = Api::<Lease>::namespaced(client.clone(), namespace).get(LEASE).await?;
    Ok(lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
}

#[tokio::test]
async fn stopping_finishes_the_running_pass_and_releases_the_lease() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-stop").await?;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    create(&api, &map("a", "red", None)?).await?;
    let mut flags = electing(&namespace);
    flags.extend(["--concurrency", "1"]);
    // The pass lasts until the test has seen enough.
    flags.extend(["--reconcile-timeout", "10m", "--grace-period", "10m"]);
    let (process, mut maps) = Process::start(&flags, |setup| Maps::wire(setup, false)).await?;
    maps.next_pass().await?;
    let holder = lease_holder(&client, &namespace).await?;
    assert!(!holder.is_empty());
    create(&api, &map("waiting", "red", None)?).await?;

    process.stop.cancel();
    eventually("not ready any more", || async {
        let (code, text) = process.get("/readyz").await?;
        Ok(code == 503 && text.contains("stopping"))
    })
    .await?;
    // While the pass goes on the Lease is renewed, again and again.
    let later = Timestamp::now() + SignedDuration::from_secs(3);
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    eventually("renewed for the running pass", || async {
        let renewed = leases.get(LEASE).await?.spec.and_then(|spec| spec.renew_time);
        Ok(renewed.is_some_and(|renewed| renewed.0 > later))
    })
    .await?;
    assert_eq!(lease_holder(&client, &namespace).await?, holder);
    assert_eq!(maps.finished.load(Ordering::SeqCst), 0, "still in work");

    maps.open.send_replace(true);
    process.stop().await?;
    assert_eq!(maps.finished.load(Ordering::SeqCst), 1, "the running pass was finished");
    assert!(maps.passes.try_recv().is_err(), "no new pass was started");
    assert_eq!(lease_holder(&client, &namespace).await?, "", "the Lease was released");
    Ok(())
}

#[tokio::test]
async fn work_that_outlasts_the_grace_period_is_named_and_keeps_the_lease() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-grace").await?;
    create(&Api::namespaced(client.clone(), &namespace), &map("slow", "red", None)?).await?;
    let mut flags = electing(&namespace);
    flags.extend(["--grace-period", "1s"]);
    let (process, mut maps) = Process::start(&flags, |setup| Maps::wire(setup, false)).await?;
    maps.next_pass().await?;
    let error = process.stop().await.unwrap_err().to_string();
    assert!(
        error.contains("grace period") && error.contains(&format!("configmap {namespace}/slow")),
        "{error}"
    );
    assert!(
        !lease_holder(&client, &namespace).await?.is_empty(),
        "what was cut off may still arrive"
    );
    Ok(())
}

#[tokio::test]
async fn a_standby_is_ready_but_idle_and_takes_over() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-standby").await?;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    create(&api, &map("a", "red", None)?).await?;
    let flags = electing(&namespace);
    let (leader, mut leading) = Process::start(&flags, |setup| Maps::wire(setup, true)).await?;
    leading.next_pass().await?;
    let (standby, mut waiting) = Process::start(&flags, |setup| Maps::wire(setup, true)).await?;
    standby.ready().await?;

    // Its cache is warm and follows; its reconciler rests.
    create(&api, &map("b", "red", None)?).await?;
    leading.next_pass().await?;
    eventually("warm", || async { Ok(waiting.names("red") == ["a", "b"]) }).await?;
    assert!(waiting.passes.try_recv().is_err());

    leader.stop().await?;
    let mut taken_over = [waiting.next_pass().await?, waiting.next_pass().await?];
    taken_over.sort();
    assert_eq!(
        taken_over,
        [Key::namespaced(&namespace, "a"), Key::namespaced(&namespace, "b")]
    );
    standby.stop().await
}

#[tokio::test]
async fn a_process_that_loses_the_lease_ends_with_an_error() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-lost").await?;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    create(&api, &map("a", "red", None)?).await?;
    let flags = electing(&namespace);
    let (process, mut maps) = Process::start(&flags, |setup| Maps::wire(setup, true)).await?;
    maps.next_pass().await?;
    let taken = Patch::Merge(json!({"spec": {"holderIdentity": "intruder"}}));
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    leases.patch(LEASE, &PatchParams::default(), &taken).await?;
    let error = timeout(PATIENCE, process.ended).await??.unwrap_err().to_string();
    assert!(
        error.contains("leadership lost") && error.contains("intruder"),
        "{error}"
    );

    create(&api, &map("b", "red", None)?).await?;
    assert!(maps.passes.recv().await.is_none(), "nothing runs any more");
    assert_eq!(lease_holder(&client, &namespace).await?, "intruder");
    Ok(())
}

/// Publishes one Event per pass.
struct Announcer {
    cache: Cache<ConfigMap>,
    events: Events,
    announced: watch::Sender<usize>,
}

impl Reconciler for Announcer {
    type Error = Failure;

    async fn reconcile(&self, key: &Key) -> Result<Wake, Failure> {
        if let Some(map) = self.cache.get(key) {
            let about = kube::Resource::object_ref(&*map, &());
            self.events
                .publish(about, Severity::Warning, "Painted", "Paint", &"long ".repeat(500));
            self.announced.send_modify(|count| *count += 1);
        }
        Ok(Wake::OnEvent)
    }
}

#[tokio::test]
async fn events_reach_the_server_also_those_published_last() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-events").await?;
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    for n in 0..20 {
        create(&api, &map(&format!("m{n}"), "red", None)?).await?;
    }
    let flags = ["--leader-elect=false", "--namespace", &namespace];
    let announced = watch::Sender::new(0);
    let mut count = announced.subscribe();
    let (process, ()) = Process::start(&flags, move |setup| {
        let queue = setup.queue("configmap");
        let mut watch = Watch::<ConfigMap>::namespaced(setup.client(), setup.scope(), &()).labels("test");
        watch.notify(&queue);
        let cache = setup.start(watch);
        let announcer = Announcer {
            cache: cache.clone(),
            events: setup.events(),
            announced,
        };
        setup.controller("configmap", queue, &cache, announcer);
    })
    .await?;
    timeout(PATIENCE, count.wait_for(|count| *count == 20)).await??;
    process.stop().await?;
    let events = Api::<Event>::namespaced(client, &namespace)
        .list(&Default::default())
        .await?;
    assert_eq!(events.items.len(), 20);
    let event = events.items.first().context("an event")?;
    ensure!(event.reason.as_deref() == Some("Painted") && event.action.as_deref() == Some("Paint"));
    ensure!(event.type_.as_deref() == Some("Warning"));
    ensure!(event.reporting_controller.as_deref() == Some(LEASE));
    assert!(
        event
            .note
            .as_ref()
            .is_some_and(|note| note.len() <= 1024 && note.ends_with('…'))
    );
    let regarding = event.regarding.as_ref().context("regarding")?;
    assert_eq!(regarding.kind.as_deref(), Some("ConfigMap"));
    assert!(regarding.uid.is_some());
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_away_at_the_start_is_waited_for() -> Result<()> {
    let client = testing::client().await?;
    for door in [Door::Refusing, Door::Silent] {
        let namespace = testing::namespace(&client, "rt-start").await?;
        create(&Api::namespaced(client.clone(), &namespace), &map("a", "red", None)?).await?;
        let gate = Gate::new(&Config::infer().await?).await?;
        gate.set(door);
        let kubeconfig = kubeconfig_through(&gate).await?;
        let path = kubeconfig.path().to_string_lossy().into_owned();
        let mut flags = electing(&namespace);
        flags.extend(["--kubeconfig", &path]);
        flags.extend(["--connect-timeout", "1s", "--read-timeout", "1s"]);
        let (process, mut maps) = Process::start(&flags, |setup| Maps::wire(setup, true)).await?;
        eventually("says what it waits for", || async {
            let (code, text) = process.get("/readyz").await?;
            Ok(code == 503 && text.contains("[-] watch ConfigMap: ") && !text.contains("first list"))
        })
        .await?;
        gate.set(Door::Open);
        maps.next_pass().await?;
        process.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_start_that_cannot_succeed_says_why() -> Result<()> {
    let refused = |flags: &'static [&'static str]| async move {
        match Process::start(flags, |_| ()).await {
            Ok(_) => bail!("{flags:?} was accepted"),
            Err(error) => Ok(format!("{error:#}")),
        }
    };
    let text = refused(&["--kubeconfig", "/nowhere"]).await?;
    assert!(text.contains("--kubeconfig") && text.contains("/nowhere"), "{text}");
    let text = refused(&["--lease-duration", "5s"]).await?;
    assert!(
        text.contains("--renew-deadline") && text.contains("--lease-duration"),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn of_many_objects_none_is_forgotten() -> Result<()> {
    let client = testing::client().await?;
    let namespace = testing::namespace(&client, "rt-many").await?;
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let flags = ["--leader-elect=false", "--namespace", &namespace, "--concurrency", "5"];
    let (process, mut maps) = Process::start(&flags, |setup| Maps::wire(setup, true)).await?;
    process.ready().await?;
    let mut seen = BTreeSet::new();
    for n in 0..100 {
        create(
            &api,
            &map(&format!("m{n:03}"), if n % 2 == 0 { "red" } else { "blue" }, None)?,
        )
        .await?;
    }
    while seen.len() < 100 {
        seen.insert(maps.next_pass().await?);
    }
    assert_eq!((maps.names("red").len(), maps.names("blue").len()), (50, 50));
    process.stop().await
}
