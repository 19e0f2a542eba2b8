//! Clients for the API server whose every call ends.
//!
//! kube's default client repeats a refused call for minutes and waits for answers without limit; a reconcile or a lease
//! renewal could hang in it. Here nothing is repeated out of sight (a 429 becomes an error with its retry-after, and the
//! object's own backoff deals with it), and every call has a limit. Only a watch may stay open: its start is limited
//! here, its silence by kube's watcher.

use std::{
    env,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use axum::body::{Body as StreamBody, Bytes, HttpBody};
use futures::StreamExt;
use http::{HeaderValue, Request, Response, header::USER_AGENT};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

use crate::metrics::{Metrics, RequestMetrics};

/// The limits of one client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the TCP and TLS handshakes.
    pub connect: Duration,
    /// Until the answer begins.
    pub response: Duration,
    /// For a whole call, its body included. Does not apply to watches.
    pub call: Duration,
}

/// Reads the configuration: the given kubeconfig file (or several, separated like a PATH), else the pod's own service
/// account, else the user's default kubeconfig.
pub async fn config(kubeconfig: Option<&str>) -> anyhow::Result<Config> {
    let options = KubeConfigOptions::default();
    if let Some(paths) = kubeconfig.filter(|paths| !paths.is_empty()) {
        let unusable =
            || format!("cannot use the kubeconfig {paths:?}; correct --kubeconfig or the variable KUBECONFIG");
        let mut merged = Kubeconfig::default();
        for path in env::split_paths(paths) {
            let file = Kubeconfig::read_from(path)
                .map_err(without_contents)
                .with_context(unusable)?;
            merged = merged.merge(file).with_context(unusable)?;
        }
        return Config::from_custom_kubeconfig(merged, &options)
            .await
            .with_context(unusable);
    }
    match Config::incluster() {
        Ok(config) => Ok(config),
        Err(no_pod) => Config::from_kubeconfig(&options)
            .await
            .map_err(without_contents)
            .with_context(|| {
                format!(
                    "no API server is configured: not in a pod ({no_pod}), and no default kubeconfig; set --kubeconfig"
                )
            }),
    }
}

/// A parser's complaint quotes the lines around the mistake, and in a kubeconfig these hold a token: it is not repeated.
fn without_contents(error: KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::Parse(_) => anyhow::anyhow!("it is not valid YAML, or not a kubeconfig"),
        other => other.into(),
    }
}

/// Builds a client whose calls carry `agent`, end within `limits`, and are counted.
pub fn build(mut config: Config, agent: &str, limits: Limits, metrics: &Metrics) -> anyhow::Result<Client> {
    config.connect_timeout = Some(limits.connect);
    config.default_retry = false;
    config.headers.push((USER_AGENT, HeaderValue::from_str(agent)?));
    let layer = BoundedLayer {
        limits,
        host: config
            .cluster_url
            .authority()
            .map(ToString::to_string)
            .unwrap_or_default(),
        metrics: metrics.requests(),
    };
    let builder = ClientBuilder::try_from(config).context("cannot build a client from the configuration")?;
    Ok(builder.with_layer(&layer).build())
}

/// A client with these limits over an API server without a network, where a paused clock is exact: nothing but its timers
/// takes time.
#[cfg(test)]
pub(crate) fn over<S, B>(server: S, limits: Limits, metrics: &Metrics) -> Client
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let layer = BoundedLayer {
        limits,
        host: String::new(),
        metrics: metrics.requests(),
    };
    ClientBuilder::new(server, "default").with_layer(&layer).build()
}

/// The same client, but `touch` is called whenever the server sends anything that it was asked for. A watch uses it to know
/// how old its knowledge is: kube's watcher does not pass on the bookmarks that keep an idle watch alive. A refusal tells
/// nothing of the objects, however often it comes.
pub(crate) fn touching(client: Client, touch: impl Fn() + Clone + Send + Sync + 'static) -> Client {
    let namespace = client.default_namespace().to_string();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let touch = touch.clone();
        async move {
            let response = client.send(request).await?;
            let is_answer = response.status().is_success();
            let touch = move || {
                if is_answer {
                    touch();
                }
            };
            touch();
            let (parts, body) = response.into_parts();
            let stream = StreamBody::new(body).into_data_stream().inspect(move |_| touch());
            Ok::<_, kube::Error>(Response::from_parts(parts, StreamBody::from_stream(stream)))
        }
    });
    Client::new(service, namespace)
}

/// A call that did not end in time.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not {what} within {limit:?}")]
pub struct TimedOut {
    what: &'static str,
    limit: Duration,
}

#[derive(Clone)]
struct BoundedLayer {
    limits: Limits,
    host: String,
    metrics: RequestMetrics,
}

impl<S> Layer<S> for BoundedLayer {
    type Service = Bounded<S>;

    fn layer(&self, inner: S) -> Bounded<S> {
        Bounded {
            inner,
            bounds: self.clone(),
        }
    }
}

struct Bounded<S> {
    inner: S,
    bounds: BoundedLayer,
}

impl<S, B> Service<Request<Body>> for Bounded<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<StreamBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().clone();
        let watch = is_watch(&request);
        let bounds = self.bounds.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let start = Instant::now();
            let result = bounds.carry_out(start, watch, answer).await;
            let code = result.as_ref().map_or_else(
                |_| "<error>".to_string(),
                |response| response.status().as_u16().to_string(),
            );
            bounds
                .metrics
                .observe(&code, method.as_str(), &bounds.host, start.elapsed());
            result
        })
    }
}

impl BoundedLayer {
    async fn carry_out<B>(
        &self,
        start: Instant,
        watch: bool,
        answer: impl Future<Output = Result<Response<B>, BoxError>>,
    ) -> Result<Response<StreamBody>, BoxError>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Limits { response, call, .. } = self.limits;
        let begin = if watch { response } else { response.min(call) };
        let answer = tokio::time::timeout_at(start + begin, answer)
            .await
            .map_err(|_| TimedOut {
                what: "answer",
                limit: begin,
            })??;
        let (parts, body) = answer.into_parts();
        let body = StreamBody::new(body);
        if watch {
            return Ok(Response::from_parts(parts, body));
        }
        // The body is read here, because a limit on the answer's head alone would let a stalled body hang the call.
        let whole = tokio::time::timeout_at(start + call, axum::body::to_bytes(body, usize::MAX))
            .await
            .map_err(|_| TimedOut {
                what: "finish its answer",
                limit: call,
            })??;
        Ok(Response::from_parts(parts, StreamBody::from(whole)))
    }
}

fn is_watch(request: &Request<Body>) -> bool {
    request
        .uri()
        .query()
        .is_some_and(|query| query.split('&').any(|parameter| parameter == "watch=true"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{ListParams, WatchParams},
    };
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    const HOUR: Duration = Duration::from_secs(3600);
    /// Nothing is late.
    const PATIENT: Limits = Limits {
        connect: HOUR,
        response: HOUR,
        call: HOUR,
    };
    const LIMITS: Limits = Limits {
        connect: Duration::from_secs(1),
        response: Duration::from_secs(3),
        call: Duration::from_secs(6),
    };

    /// A server that reads one request per connection, answers with `answer`, and then keeps the connection open. Also says
    /// how often it was asked.
    async fn server(answer: impl Into<String>) -> (Config, Arc<AtomicUsize>) {
        let answer = answer.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = asked.clone();
        tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = socket.read(&mut request).await;
                counter.fetch_add(1, Ordering::SeqCst);
                let _ = socket.write_all(answer.as_bytes()).await;
                open.push(socket);
            }
        });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        (config, asked)
    }

    /// Within [`LIMITS`], from a server that answers at once with the beginning of a body, or never at all.
    fn maps(answers: bool, metrics: &Metrics) -> Api<ConfigMap> {
        let server = tower::service_fn(move |_| async move {
            if !answers {
                std::future::pending::<()>().await;
            }
            let begun = futures::stream::once(async { Ok::<_, BoxError>("{") });
            let body = StreamBody::from_stream(begun.chain(futures::stream::pending()));
            Ok::<_, BoxError>(Response::new(body))
        });
        Api::namespaced(over(server, LIMITS, metrics), "ns")
    }

    fn timed_out(error: &kube::Error) -> Option<&TimedOut> {
        match error {
            kube::Error::Service(inner) => inner.downcast_ref(),
            _ => None,
        }
    }

    /// Reached only by a failing test.
    async fn within<T>(what: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(300), what).await.unwrap()
    }

    #[tokio::test]
    async fn a_server_that_never_answers_is_given_up() {
        let metrics = Metrics::new("0").unwrap();
        let (config, _) = server("").await;
        let limits = Limits {
            response: Duration::from_millis(300),
            ..PATIENT
        };
        let api: Api<ConfigMap> = Api::namespaced(build(config, "test/1", limits, &metrics).unwrap(), "ns");
        let error = within(api.get("a")).await.unwrap_err();
        assert_eq!(timed_out(&error).unwrap().what, "answer", "{error:?}");
        let text = metrics.render().unwrap();
        assert!(text.contains(r#"rest_client_requests_total{code="<error>""#), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn every_limit_ends_a_call_in_time() {
        let metrics = Metrics::new("0").unwrap();
        for (answers, what, limit) in [
            (false, "answer", LIMITS.response),
            (true, "finish its answer", LIMITS.call),
        ] {
            let start = Instant::now();
            let error = maps(answers, &metrics).list(&ListParams::default()).await.unwrap_err();
            assert_eq!(timed_out(&error).unwrap().what, what, "{error:?}");
            assert_eq!(start.elapsed().as_secs(), limit.as_secs(), "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_outlives_the_limit_of_a_call_but_must_begin_in_time() {
        let metrics = Metrics::new("0").unwrap();
        let api = maps(true, &metrics);
        let mut stream = Box::pin(api.watch(&WatchParams::default(), "0").await.unwrap());
        let silent = tokio::time::timeout(HOUR, stream.next()).await;
        assert!(silent.is_err(), "the watch was cut");

        let start = Instant::now();
        let watch = maps(false, &metrics).watch(&WatchParams::default(), "0").await;
        let error = watch.err().unwrap();
        assert!(timed_out(&error).is_some(), "{error:?}");
        assert_eq!(start.elapsed().as_secs(), LIMITS.response.as_secs());
    }

    #[tokio::test]
    async fn a_refusal_is_not_repeated_in_secret() {
        let metrics = Metrics::new("0").unwrap();
        // Closed, because this server would not read another request on it.
        let refusal =
            "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let (config, asked) = server(refusal).await;
        let api: Api<ConfigMap> = Api::namespaced(build(config, "test/1", PATIENT, &metrics).unwrap(), "ns");
        let error = within(api.get("a")).await.unwrap_err();
        assert!(
            matches!(&error, kube::Error::Api(status) if status.code == 429),
            "{error:?}"
        );
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let text = metrics.render().unwrap();
        assert!(
            text.contains(r#"code="429""#) && text.contains(r#"method="GET""#),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_refused_watch_is_not_taken_for_a_living_one() {
        let metrics = Metrics::new("0").unwrap();
        let status =
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"reason":"Forbidden","message":"no"}"#;
        let head = "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json";
        let refusal = format!("{head}\r\nContent-Length: {}\r\n\r\n{status}", status.len());
        let (config, _) = server(refusal).await;
        let client = build(config, "test/1", PATIENT, &metrics).unwrap();
        let touched = Arc::new(AtomicUsize::new(0));
        let counter = touched.clone();
        let client = touching(client, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let api: Api<ConfigMap> = Api::namespaced(client, "ns");
        let refused = api.watch(&WatchParams::default(), "0").await.err().unwrap();
        assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));
        assert_eq!(touched.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn every_byte_of_a_watch_is_noticed() {
        let metrics = Metrics::new("0").unwrap();
        let event = r#"{"type":"BOOKMARK","object":{"kind":"C","apiVersion":"v1","metadata":{"resourceVersion":"5"}}}"#;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked";
        let bookmark = format!("{head}\r\n\r\n{:x}\r\n{event}\n\r\n", event.len() + 1);
        let (config, _) = server(bookmark).await;
        let client = build(config, "test/1", PATIENT, &metrics).unwrap();
        let touched = Arc::new(AtomicUsize::new(0));
        let counter = touched.clone();
        let client = touching(client, move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let api: Api<ConfigMap> = Api::namespaced(client, "ns");
        let mut stream = Box::pin(api.watch(&WatchParams::default(), "0").await.unwrap());
        assert_eq!(touched.load(Ordering::Relaxed), 1, "the answer's head");
        let event = stream.next().await.unwrap().unwrap();
        assert!(matches!(event, kube::api::WatchEvent::Bookmark(_)));
        assert!(touched.load(Ordering::Relaxed) >= 2, "the bookmark");
    }

    #[tokio::test]
    async fn a_broken_kubeconfig_is_not_quoted() {
        let file = env::temp_dir().join(format!("capt-broken-kubeconfig-{}", std::process::id()));
        std::fs::write(&file, "users:\n- name: u\n  user:\n    token: s3cret\n  broken: [\n").unwrap();
        let error = config(file.to_str()).await.unwrap_err();
        std::fs::remove_file(&file).unwrap();
        let text = format!("{error:#} {error:?}");
        assert!(text.contains("not valid YAML") && !text.contains("s3cret"), "{text}");
    }

    #[tokio::test]
    async fn a_wrong_kubeconfig_names_the_flag() {
        let error = config(Some("/nowhere/kubeconfig")).await.unwrap_err();
        let text = format!("{error:#}");
        assert!(
            text.contains("--kubeconfig") && text.contains("/nowhere/kubeconfig"),
            "{text}"
        );
    }
}
