//! Kubeconfigs, certificates and keys for the tests of this crate.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kubeconfig::{Rules, Trust};

/// A time at which the certificates here are valid.
pub(crate) fn now() -> Timestamp {
    "2026-06-01T00:00:00Z".parse().unwrap()
}

pub(crate) fn rules(trust: Trust) -> Rules {
    Rules { trust, now: now() }
}

/// A certificate authority as PEM; the same one on every call, because making one takes time.
pub(crate) fn authority() -> String {
    static AUTHORITY: OnceLock<String> = OnceLock::new();
    AUTHORITY.get_or_init(|| self_signed(true).0).clone()
}

/// A client's certificate and key as PEM.
pub(crate) fn client() -> (String, String) {
    static CLIENT: OnceLock<(String, String)> = OnceLock::new();
    CLIENT.get_or_init(|| self_signed(false)).clone()
}

/// A certificate authority that is valid until the beginning of this year.
pub(crate) fn ending(year: i32) -> String {
    let mut params = params(true);
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

fn self_signed(authority: bool) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    (params(authority).self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn params(authority: bool) -> rcgen::CertificateParams {
    let mut params = rcgen::CertificateParams::new(vec!["example.com".to_owned()]).unwrap();
    if authority {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    params
}

pub(crate) fn base64(text: &str) -> String {
    STANDARD.encode(text)
}

/// A valid kubeconfig whose only context has this token.
pub(crate) fn kubeconfig(token: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "admin@demo",
        "clusters": [{"name": "demo", "cluster": {
            "server": "https://demo.example.com:6443",
            "certificate-authority-data": base64(&authority()),
        }}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "admin@demo", "context": {"cluster": "demo", "user": "admin"}}],
    })
}

/// As a template would write it.
pub(crate) fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap()
}
