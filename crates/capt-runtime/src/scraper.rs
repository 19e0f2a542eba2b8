//! Who may read the metrics: whom the API server knows by the token sent along, and lets `get` the URL `/metrics`. Cluster
//! administrators grant that with an ordinary ClusterRole.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    middleware::Next,
    response::{IntoResponse, Response},
};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::{rbac::Rule, telemetry::api_error};

/// What a controller needs to ask the API server about its scrapers.
pub const REVIEWS: &[Rule] = &[
    Rule {
        groups: &["authentication.k8s.io"],
        resources: &["tokenreviews"],
        names: &[],
        verbs: &["create"],
        why: "whose token a scraper of the metrics sends",
    },
    Rule {
        groups: &["authorization.k8s.io"],
        resources: &["subjectaccessreviews"],
        names: &[],
        verbs: &["create"],
        why: "whether that one may read the metrics",
    },
];

/// How long a verdict holds: a scraper comes every few seconds, and its permissions seldom change.
const VERDICT_HOLDS: Duration = Duration::from_secs(60);
/// Verdicts remembered at once. Strangers with ever new tokens must not fill the memory.
const MAX_VERDICTS: usize = 256;

/// Asks the API server about scrapers, and remembers what it said.
#[derive(Clone)]
pub(crate) struct Scrapers {
    client: Client,
    verdicts: Arc<Mutex<Verdicts>>,
}

/// By the fingerprint of the token, each with the time until which it holds.
type Verdicts = HashMap<[u8; 32], (Verdict, Instant)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Forbidden,
    Unknown,
}

impl Scrapers {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            verdicts: Arc::default(),
        }
    }

    /// Lets a request through, or says why not.
    pub(crate) async fn check(State(scrapers): State<Self>, request: Request, next: Next) -> Response {
        let Some(token) = bearer(request.headers()) else {
            let text = "send a token of the cluster: Authorization: Bearer …\n";
            return (StatusCode::UNAUTHORIZED, text).into_response();
        };
        match scrapers.verdict(token).await {
            Ok(Verdict::Allowed) => next.run(request).await,
            Ok(Verdict::Forbidden) => {
                let text = "the API server does not let you get the URL /metrics; bind a ClusterRole that does\n";
                (StatusCode::FORBIDDEN, text).into_response()
            }
            Ok(Verdict::Unknown) => {
                let text = "the API server does not know this token\n";
                (StatusCode::UNAUTHORIZED, text).into_response()
            }
            Err(error) => {
                tracing::warn!(
                    error = api_error(&error),
                    "the API server could not be asked about a scraper"
                );
                let text = "the API server could not be asked whether you may read this\n";
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        }
    }

    async fn verdict(&self, token: &str) -> Result<Verdict, kube::Error> {
        // The token itself is not kept.
        let fingerprint: [u8; 32] = Sha256::digest(token).into();
        let now = Instant::now();
        let known = self.lock().get(&fingerprint).copied();
        if let Some((verdict, until)) = known
            && now < until
        {
            return Ok(verdict);
        }
        let verdict = match self.who(token).await? {
            Some(user) => self.may_scrape(user).await?,
            None => Verdict::Unknown,
        };
        let mut verdicts = self.lock();
        verdicts.retain(|_, (_, until)| now < *until);
        if verdicts.len() < MAX_VERDICTS {
            verdicts.insert(fingerprint, (verdict, now + VERDICT_HOLDS));
        }
        Ok(verdict)
    }

    async fn who(&self, token: &str) -> Result<Option<UserInfo>, kube::Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.into(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let answer = Api::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await?;
        let status = answer.status.unwrap_or_default();
        Ok(status.user.filter(|_| status.authenticated == Some(true)))
    }

    async fn may_scrape(&self, user: UserInfo) -> Result<Verdict, kube::Error> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some("/metrics".into()),
                    verb: Some("get".into()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = Api::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await?;
        Ok(match answer.status {
            Some(status) if status.allowed => Verdict::Allowed,
            _ => Verdict::Forbidden,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Verdicts> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Scrapers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrapers").finish_non_exhaustive()
    }
}

/// The token of the request. The scheme is case-insensitive.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_counts() {
        for (header, token) in [
            (Some("Bearer abc"), Some("abc")),
            (Some("bearer  abc "), Some("abc")),
            (Some("Basic abc"), None),
            (Some("Bearer "), None),
            (Some("Bearer"), None),
            (None, None),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(AUTHORIZATION, header.parse().unwrap());
            }
            assert_eq!(bearer(&headers), token, "{header:?}");
        }
    }
}
