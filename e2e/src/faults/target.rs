//! What a request to the API server is about, read from its method and path.

use std::fmt;

use axum::body::Bytes;
use http::{Method, Uri};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    /// Something that is not about objects, such as discovery.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub verb: Verb,
    pub resource: String,
    pub subresource: Option<String>,
    /// Empty for a collection.
    pub name: String,
}

impl Target {
    /// The name of an object that is being created stands in the body alone.
    pub fn of(method: &Method, uri: &Uri, body: &Bytes) -> Self {
        let mut segments = uri.path().split('/').filter(|segment| !segment.is_empty()).peekable();
        let prefix = match segments.next() {
            Some("api") => 1,
            Some("apis") => 2,
            _ => return Self::other(),
        };
        for _ in 0..prefix {
            segments.next();
        }
        let mut rest: Vec<&str> = segments.collect();
        // `namespaces/x` is a Namespace itself; only what follows is in it.
        if rest.len() > 2 && rest.first() == Some(&"namespaces") {
            rest.drain(..2);
        }
        let mut rest = rest.into_iter();
        let Some(resource) = rest.next() else {
            return Self::other();
        };
        let name = rest.next().map(str::to_owned);
        let subresource = rest.next().map(str::to_owned);
        let verb = match *method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            Method::GET if parameter(uri, "watch").is_some_and(|value| value != "false" && value != "0") => Verb::Watch,
            Method::GET if name.is_some() => Verb::Get,
            Method::GET => Verb::List,
            _ => Verb::Other,
        };
        Self {
            verb,
            resource: resource.to_owned(),
            subresource,
            name: name.or_else(|| named_in(body)).unwrap_or_default(),
        }
    }

    fn other() -> Self {
        Self {
            verb: Verb::Other,
            resource: String::new(),
            subresource: None,
            name: String::new(),
        }
    }

    /// A write that the state of the world depends on. Events tell people what happened and Leases who may act: nothing
    /// is built on the one, and the other is switched off where faults are tried.
    pub fn counts(&self) -> bool {
        let is_write = matches!(self.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete);
        is_write && self.resource != "events" && self.resource != "leases"
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::Other => "other",
        };
        write!(f, "{verb} {}", self.resource)?;
        if let Some(subresource) = &self.subresource {
            write!(f, "/{subresource}")?;
        }
        write!(f, " {}", self.name)
    }
}

fn named_in(body: &Bytes) -> Option<String> {
    let object: Value = serde_json::from_slice(body).ok()?;
    Some(object.pointer("/metadata/name")?.as_str()?.to_owned())
}

/// The value of a parameter of the query; none of those that are looked for here is ever escaped.
pub(super) fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let mut pairs = uri
        .query()?
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// The same address with some parameters of the query taken away and others added.
pub(super) fn with_query(uri: &Uri, without: &[&str], with: &[(&str, &str)]) -> String {
    let kept = uri.query().unwrap_or_default().split('&').filter(|pair| {
        let key = pair.split_once('=').map_or(*pair, |(key, _)| key);
        !key.is_empty() && !without.contains(&key)
    });
    let added = with.iter().map(|(key, value)| format!("{key}={value}"));
    let query: Vec<String> = kept.map(str::to_owned).chain(added).collect();
    format!("{}?{}", uri.path(), query.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: Method, path: &str, body: &'static str) -> (String, bool) {
        let uri = path.parse().unwrap();
        let target = Target::of(&method, &uri, &Bytes::from_static(body.as_bytes()));
        (target.to_string(), target.counts())
    }

    #[test]
    fn a_request_is_named_and_writes_are_told_from_the_rest() {
        let infrastructure = "/apis/infrastructure.cluster.x-k8s.io/v1beta1/namespaces/n";
        let cases = [
            (
                Method::PATCH,
                format!("{infrastructure}/captclusters/a/status?force=true"),
                "",
                "patch captclusters/status a",
                true,
            ),
            (
                Method::POST,
                "/apis/tf.upbound.io/v1beta1/workspaces".into(),
                r#"{"metadata": {"name": "w"}}"#,
                "create workspaces w",
                true,
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/n/secrets/s".into(),
                "",
                "delete secrets s",
                true,
            ),
            (
                Method::PATCH,
                "/api/v1/namespaces/n".into(),
                "",
                "patch namespaces n",
                true,
            ),
            (
                Method::POST,
                "/apis/events.k8s.io/v1/namespaces/n/events".into(),
                "{}",
                "create events ",
                false,
            ),
            (
                Method::GET,
                "/api/v1/namespaces/n/secrets/s".into(),
                "",
                "get secrets s",
                false,
            ),
            (
                Method::GET,
                format!("{infrastructure}/captclusters?limit=500"),
                "",
                "list captclusters ",
                false,
            ),
            (
                Method::GET,
                format!("{infrastructure}/captclusters?&watch=true"),
                "",
                "watch captclusters ",
                false,
            ),
            (Method::GET, "/version".into(), "", "other  ", false),
        ];
        for (method, path, body, name, counts) in cases {
            assert_eq!(read(method, &path, body), (name.to_owned(), counts), "{path}");
        }
    }

    #[test]
    fn a_query_can_be_rewritten() {
        let uri: Uri = "/x?watch=true&labelSelector=a%3Db&resourceVersion=0".parse().unwrap();
        assert_eq!(parameter(&uri, "resourceVersion"), Some("0"));
        assert_eq!(parameter(&uri, "limit"), None);
        assert_eq!(
            with_query(&uri, &["watch", "resourceVersion"], &[("resourceVersion", "7")]),
            "/x?labelSelector=a%3Db&resourceVersion=7"
        );
    }
}
