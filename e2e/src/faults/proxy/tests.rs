use std::collections::HashMap;

use axum::Router;
use axum::extract::State;
use futures::StreamExt;

use super::super::plan::Age;
use super::super::watch::event;
use super::*;
use serde_json::json;

const STATUS: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/n/captclusters/a/status";
const COLLECTION: &str = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/n/captclusters";

/// An API server that remembers what it was asked and gives every write a version.
#[derive(Clone, Default)]
struct Server {
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    async fn answer(State(server): State<Self>, request: Request<Body>) -> Response<Body> {
        let credential = request
            .headers()
            .get("authorization")
            .map(|value| value.to_str().unwrap());
        if request.uri().path() == "/api/v1/namespaces" {
            let version = 100 + server.asked().len();
            let answer = json!({"metadata": {"resourceVersion": version.to_string()}, "items": []});
            return Response::new(Body::from(answer.to_string()));
        }
        assert_eq!(
            credential,
            Some("Bearer its-own"),
            "the controller's credential is passed on"
        );
        let line = format!("{} {}", request.method(), request.uri());
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
        let line = format!("{line} {}", String::from_utf8_lossy(&body));
        let version = {
            let mut asked = server.asked.lock().unwrap();
            asked.push(line.trim_end().to_owned());
            100 + asked.len()
        };
        if line.contains("forgotten") && line.contains("resourceVersionMatch=Exact") {
            return respond(&Answer::EXPIRED);
        }
        if line.contains("watch=true") {
            let event = event("MODIFIED", json!({"metadata": {"name": "new"}}));
            let events = futures::stream::once(async { Ok::<_, std::io::Error>(event) });
            return Response::new(Body::from_stream(events.chain(futures::stream::pending())));
        }
        let answer = json!({
            "kind": "CAPTClusterList", "apiVersion": "v1", "items": [{"metadata": {"name": "old"}}],
            "metadata": {"resourceVersion": version.to_string()},
        });
        Response::new(Body::from(answer.to_string()))
    }
}

async fn proxy(plan: Plan) -> (Server, Proxy) {
    proxy_shutting_for(SHUT, plan).await
}

async fn proxy_shutting_for(shut: Duration, plan: Plan) -> (Server, Proxy) {
    let server = Server::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(Server::answer).with_state(server.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let upstream = Config::new(format!("http://{address}").parse().unwrap());
    let proxy = Proxy::shutting_for(shut, upstream, plan).await.unwrap();
    (server, proxy)
}

fn strike(fault: Fault) -> Plan {
    Plan::Strike { at: 2, fault }
}

/// A controller's process: its connections are its own.
struct Controller(Client);

impl Controller {
    fn of(proxy: &Proxy) -> Self {
        let mut config = Config::new(proxy.url().parse().unwrap());
        config.default_retry = false;
        Self(Client::try_from(config).unwrap())
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> kube::Result<Response<kube::client::Body>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", "Bearer its-own")
            .body(kube::client::Body::from(body.as_bytes().to_vec()));
        self.0.send(request.unwrap()).await
    }

    /// The code of the answer; `None` when the connection broke off.
    async fn write(&self, body: &str) -> Option<u16> {
        self.send("PATCH", STATUS, body)
            .await
            .ok()
            .map(|response| response.status().as_u16())
    }

    async fn watch(&self, parameters: &str) -> Response<kube::client::Body> {
        let path = format!("{COLLECTION}?watch=true{parameters}");
        self.send("GET", &path, "").await.unwrap()
    }
}

async fn events(response: Response<kube::client::Body>, count: usize) -> Vec<String> {
    let mut lines = Body::new(response.into_body()).into_data_stream();
    let mut found: Vec<String> = Vec::new();
    while found.len() < count {
        let piece = lines.next().await.expect("more events").expect("an open watch");
        for line in String::from_utf8_lossy(&piece).lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
            found.push(
                format!("{} {name}", event["type"].as_str().unwrap())
                    .trim_end()
                    .to_owned(),
            );
        }
    }
    found
}

fn written(server: &Server) -> Vec<String> {
    let writes = server.asked().into_iter().filter(|line| line.starts_with("PATCH"));
    writes.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn undisturbed_it_carries_and_counts() {
    let (server, proxy) = proxy(Plan::Undisturbed).await;
    let controller = Controller::of(&proxy);
    assert_eq!(controller.write("1").await, Some(200));
    assert!(controller.send("GET", COLLECTION, "").await.is_ok());
    assert!(
        controller
            .send("POST", "/apis/events.k8s.io/v1/namespaces/n/events", "{}")
            .await
            .is_ok()
    );
    assert_eq!(events(controller.watch("").await, 1).await, ["MODIFIED new"]);
    assert_eq!(server.asked().len(), 4);
    assert_eq!(proxy.writes().len(), 1, "neither reads nor Events count");
    assert_eq!(proxy.writes()[0].to_string(), "patch captclusters/status a -> 200");
    assert!(proxy.struck().is_empty());
    assert!(proxy.watched().iter().eq(["captclusters"]));
}

#[tokio::test]
async fn a_kill_stops_the_world_before_or_after_the_write() {
    let cases: HashMap<Moment, &[&str]> = HashMap::from([
        (Moment::Before, &["1", "again"][..]),
        (Moment::After, &["1", "2", "again"][..]),
    ]);
    for (moment, expected) in cases {
        let (server, proxy) = proxy(strike(Fault::Kill(moment))).await;
        let controller = Controller::of(&proxy);
        assert_eq!(controller.write("1").await, Some(200));
        let beside = Controller::of(&proxy);
        let doomed = async {
            tokio::join!(controller.write("2"), async {
                proxy.stopped().await;
                // The world has stopped for everything that this process asks, not for the one write alone.
                let answer = tokio::time::timeout(Duration::from_millis(100), beside.write("3")).await;
                assert!(answer.is_err(), "{answer:?}");
                proxy.revive();
            })
        };
        assert_eq!(doomed.await.0, None);
        assert_eq!(Controller::of(&proxy).write("again").await, Some(200));
        assert_eq!(written(&server), expected, "{moment:?}");
    }
}

#[tokio::test]
async fn a_late_write_arrives_just_before_the_successors_first() {
    let (server, proxy) = proxy(strike(Fault::KillAndArriveLate)).await;
    let controller = Controller::of(&proxy);
    controller.write("1").await;
    let (answer, ()) = tokio::join!(controller.write("2"), async {
        proxy.stopped().await;
        proxy.revive();
    });
    assert_eq!(answer, None);
    assert_eq!(written(&server), ["1"]);
    assert_eq!(Controller::of(&proxy).write("3").await, Some(200));
    assert_eq!(written(&server), ["1", "2", "3"]);
}

#[tokio::test]
async fn refusals_and_cuts_strike_once() {
    let cases = [
        (Fault::Refuse(Refusal::Conflict), Some(409), false),
        (Fault::Refuse(Refusal::TooManyRequests), Some(429), false),
        (Fault::Refuse(Refusal::InternalError), Some(500), false),
        (Fault::Refuse(Refusal::Unavailable), Some(503), false),
        (Fault::TimeOut, Some(504), true),
        (Fault::Cut(Moment::Before), None, false),
        (Fault::Cut(Moment::After), None, true),
    ];
    for (fault, code, is_done) in cases {
        let (server, proxy) = proxy(strike(fault)).await;
        let controller = Controller::of(&proxy);
        controller.write("1").await;
        assert_eq!(controller.write("2").await, code, "{fault}");
        assert_eq!(controller.write("3").await, Some(200), "{fault}");
        assert_eq!(written(&server).contains(&"2".to_owned()), is_done, "{fault}");
        assert_eq!(proxy.struck()[0].code.is_some(), is_done, "{fault}");
    }
}

#[tokio::test]
async fn a_repeated_fault_strikes_every_write_but_not_its_repetition() {
    let plan = Plan::Repeat {
        fault: Fault::Refuse(Refusal::InternalError),
    };
    let (server, proxy) = proxy(plan).await;
    let controller = Controller::of(&proxy);
    for body in ["1", "1", "2", "2"] {
        controller.write(body).await;
    }
    let path = STATUS.trim_end_matches("/status");
    let other = controller.send("PATCH", path, "3").await.unwrap();
    assert_eq!(other.status(), 500, "another part of the object is counted by itself");
    assert_eq!(written(&server), ["1", "2"]);
    assert_eq!(proxy.struck().len(), 3);
}

#[tokio::test]
async fn too_many_requests_says_when_to_come_back() {
    let (_server, proxy) = proxy(strike(Fault::Refuse(Refusal::TooManyRequests))).await;
    let controller = Controller::of(&proxy);
    controller.write("1").await;
    let answer = controller.send("PATCH", STATUS, "2").await.unwrap();
    assert_eq!(answer.headers().get(RETRY_AFTER).unwrap(), "1");
}

#[tokio::test]
async fn watches_break_off_and_stay_shut_for_a_while() {
    // While one lasts there is all the time to look; the other is over as soon as the clock turns.
    for (shut, is_over) in [(Duration::from_secs(3600), false), (Duration::from_millis(1), true)] {
        let (_server, proxy) = proxy_shutting_for(shut, strike(Fault::BreakWatches)).await;
        let controller = Controller::of(&proxy);
        controller.write("1").await;
        let watch = controller.watch("").await;
        assert_eq!(controller.write("2").await, Some(200));
        let body = axum::body::to_bytes(Body::new(watch.into_body()), usize::MAX).await;
        assert!(body.is_err(), "an open watch ends without warning");
        if is_over {
            let mut flow = proxy.shared.flow.subscribe();
            flow.wait_for(|flow| flow.mode == Mode::Open).await.unwrap();
            assert_eq!(events(controller.watch("").await, 1).await, ["MODIFIED new"]);
        } else {
            assert_eq!(controller.watch("").await.status(), 503);
        }
    }
}

#[tokio::test]
async fn a_successor_sees_the_past_first() {
    for (age, version) in [
        (Age::BeforeTheWrite, 101),
        (Age::BeforeTheFirstChild, 100),
        (Age::BeforeEverything, 100),
    ] {
        let (server, proxy) = proxy(strike(Fault::KillAndTravelBack(age))).await;
        let controller = Controller::of(&proxy);
        controller.send("POST", COLLECTION, "{}").await.unwrap();
        tokio::join!(controller.write("2"), async {
            proxy.stopped().await;
            proxy.revive();
        });
        let successor = Controller::of(&proxy);
        let watch = successor
            .watch("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0&labelSelector=x")
            .await;
        assert_eq!(events(watch, 3).await, ["ADDED old", "BOOKMARK", "MODIFIED new"]);
        let asked = server.asked();
        assert!(
            asked.iter().any(|line| line
                == &format!("GET {COLLECTION}?labelSelector=x&resourceVersion={version}&resourceVersionMatch=Exact")),
            "{asked:?}"
        );
        assert!(
            asked
                .iter()
                .any(|line| line == &format!("GET {COLLECTION}?watch=true&labelSelector=x&resourceVersion={version}")),
            "{asked:?}"
        );
        // The past is over: the next watch begins in the present.
        let asked = server.asked().len();
        successor.watch("&sendInitialEvents=true").await;
        assert_eq!(server.asked().len(), asked + 1);
    }
}

#[tokio::test]
async fn a_past_that_is_forgotten_is_an_obstacle() {
    let (_server, proxy) = proxy(strike(Fault::KillAndTravelBack(Age::BeforeTheWrite))).await;
    let controller = Controller::of(&proxy);
    controller.write("1").await;
    tokio::join!(controller.write("2"), async {
        proxy.stopped().await;
        proxy.revive();
    });
    let watch = Controller::of(&proxy)
        .watch("&sendInitialEvents=true&labelSelector=forgotten")
        .await;
    assert_eq!(events(watch, 1).await, ["MODIFIED new"]);
    let obstacle = proxy.obstacle().expect("an obstacle");
    assert!(obstacle.contains("410 Gone"), "{obstacle}");
}
