//! A kubeconfig as it may be handed on: checked, and cut down to its current context.
//!
//! Cluster API, its users and other controllers load the copy in their own pods. So nothing goes through that would make
//! them run a program, read a file or talk to somebody else ([`Trust`]), and fields that are not known here are left out,
//! as the readers themselves ignore them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::certificate;
use crate::invalid::{Danger, Invalid, Problem};

/// A kubeconfig with one context is a few KiB, one with an engineer's whole collection a few hundred.
pub(crate) const MAX_KUBECONFIG: usize = 256 * 1024;

/// Whether those who write the templates are trusted with what runs in Cluster API's pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// No programs, no files, no proxies.
    DataOnly,
    /// `--allow-exec-kubeconfig`: all of these. Skipped TLS verification is refused even then: with it, a usable CA, which
    /// every kubeconfig must have, would mean nothing.
    Templates,
}

/// What Secrets are judged by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) trust: Trust,
    /// Certificates that have expired by then are of no use.
    pub(crate) now: Timestamp,
}

/// A checked kubeconfig. No `Debug`: it holds credentials.
pub(crate) struct Kubeconfig {
    text: Vec<u8>,
    expires: Option<Timestamp>,
}

impl Kubeconfig {
    /// Reads a kubeconfig and keeps its current context. The error names the field, never a value.
    pub(crate) fn read(data: &[u8], rules: Rules) -> Result<Self, Invalid> {
        let whole = parse(data)?;
        let (kept, expires) = current_context(&whole, rules)?;
        let kept = Value::Object(kept);
        // Where nothing was left out, the text stays as its author wrote it.
        let text = if kept == whole && reads_the_same_everywhere(data) {
            data.to_vec()
        } else {
            render(&kept)?
        };
        Ok(Self { text, expires })
    }

    /// When the first of its certificates expires.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.text
    }
}

fn parse(data: &[u8]) -> Result<Value, Invalid> {
    let invalid = |problem| Invalid::new("", problem);
    if data.len() > MAX_KUBECONFIG {
        return Err(invalid(Problem::TooLarge { limit: MAX_KUBECONFIG }));
    }
    let text = std::str::from_utf8(data).map_err(|_| invalid(Problem::NotUtf8))?;
    if text.trim().is_empty() {
        return Err(invalid(Problem::Missing));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: 64, max_aliases: 100, max_nodes: 50_000 },
    };
    // The parser's own text quotes the document; only the position is taken from it.
    let whole: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
        invalid(Problem::NotYaml { line, column })
    })?;
    if !whole.is_object() {
        return Err(invalid(Problem::WrongType {
            expected: "a YAML mapping",
        }));
    }
    Ok(whole)
}

/// Written so that readers of YAML 1.1 and 1.2 see the same: every string in quotes.
fn render(kubeconfig: &Value) -> Result<Vec<u8>, Invalid> {
    let options = serde_saphyr::ser_options! { quote_all: true };
    let text = serde_saphyr::to_string_with_options(kubeconfig, options);
    let text = text.map_err(|_| Invalid::new("", Problem::NotRenderable))?;
    match parse(text.as_bytes()) {
        Ok(read) if read == *kubeconfig => Ok(text.into_bytes()),
        _ => Err(Invalid::new("", Problem::NotRenderable)),
    }
}

/// Whether every YAML parser reads this text as ours did. A text that one parser reads as harmless and another as a
/// program to run must not be passed on as it is: tags, anchors, merges, directives, several documents, tabs and line
/// breaks outside ASCII are where parsers differ.
fn reads_the_same_everywhere(data: &[u8]) -> bool {
    let plain = |byte: &u8| {
        matches!(byte, b'\n' | b' '..=b'~') && !matches!(byte, b'&' | b'*' | b'!' | b'%' | b'?' | b'`' | b'|' | b'>')
    };
    let has = |mark: &[u8]| data.windows(mark.len()).any(|window| window == mark);
    data.iter().all(plain) && !has(b"---") && !has(b"...") && !has(b"<<")
}

/// The parts of a kubeconfig that its current context names, in the same form, and when they expire.
fn current_context(whole: &Value, rules: Rules) -> Result<(Map<String, Value>, Option<Timestamp>), Invalid> {
    let root = Part {
        value: whole,
        at: String::new(),
        rules,
    };
    root.constant("apiVersion", "v1")?;
    root.constant("kind", "Config")?;
    let current = root.required_text("current-context")?;

    let context = root.named("contexts", current, "context")?;
    let mut kept_context = Map::new();
    let cluster_name = context.required_text("cluster")?;
    let user_name = context.required_text("user")?;
    kept_context.insert("cluster".into(), cluster_name.into());
    kept_context.insert("user".into(), user_name.into());
    context.keep_text("namespace", &mut kept_context)?;

    let (kept_cluster, authority_expires) = cluster(&root.named("clusters", cluster_name, "cluster")?)?;
    let (kept_user, client_expires) = user(&root.named("users", user_name, "user")?)?;

    let mut kept = Map::new();
    kept.insert("apiVersion".into(), "v1".into());
    kept.insert("kind".into(), "Config".into());
    kept.insert("current-context".into(), current.into());
    kept.insert("contexts".into(), json!([{"name": current, "context": kept_context}]));
    kept.insert(
        "clusters".into(),
        json!([{"name": cluster_name, "cluster": kept_cluster}]),
    );
    kept.insert("users".into(), json!([{"name": user_name, "user": kept_user}]));
    // kubectl writes it, always empty.
    if let Some(preferences @ Value::Object(members)) = root.get("preferences")
        && members.is_empty()
    {
        kept.insert("preferences".into(), preferences.clone());
    }
    Ok((kept, certificate::earlier(authority_expires, client_expires)))
}

fn cluster(part: &Part<'_>) -> Result<(Map<String, Value>, Option<Timestamp>), Invalid> {
    let mut kept = Map::new();
    let server = part.required_text("server")?;
    check_server(server).map_err(|problem| part.invalid("server", problem))?;
    kept.insert("server".into(), server.into());

    if part.flag("insecure-skip-tls-verify")? {
        return Err(part.invalid("insecure-skip-tls-verify", Problem::Unsafe(Danger::SkipsVerification)));
    }
    part.keep("insecure-skip-tls-verify", &mut kept);
    let file = part.keep_trusted_text("certificate-authority", Danger::ReadsFile, &mut kept)?;
    let data = part.keep_pem("certificate-authority-data", certificate::usable_authority, &mut kept)?;
    // A file in the reader's pod cannot be looked into from here.
    if data.is_none() && !file {
        return Err(part.invalid("certificate-authority-data", Problem::Missing));
    }
    part.keep_trusted_text("proxy-url", Danger::UsesProxy, &mut kept)?;
    part.keep_text("tls-server-name", &mut kept)?;
    part.flag("disable-compression")?;
    part.keep("disable-compression", &mut kept);
    Ok((kept, data.flatten()))
}

fn user(part: &Part<'_>) -> Result<(Map<String, Value>, Option<Timestamp>), Invalid> {
    let mut kept = Map::new();
    for program in ["exec", "auth-provider"] {
        match part.get(program) {
            None => {}
            Some(_) if part.rules.trust == Trust::DataOnly => {
                return Err(part.invalid(program, Problem::Unsafe(Danger::RunsProgram)));
            }
            Some(Value::Object(_)) => part.keep(program, &mut kept),
            Some(_) => return Err(part.invalid(program, Problem::WrongType { expected: "a mapping" })),
        }
    }
    for file in ["client-certificate", "client-key", "tokenFile"] {
        part.keep_trusted_text(file, Danger::ReadsFile, &mut kept)?;
    }
    let certificate = part.keep_pem(
        "client-certificate-data",
        certificate::usable_client_certificate,
        &mut kept,
    )?;
    let key = part.keep_pem(
        "client-key-data",
        |pem, _| certificate::usable_private_key(pem),
        &mut kept,
    )?;
    let files = kept.contains_key("client-certificate") || kept.contains_key("client-key");
    match (certificate.is_some(), key.is_some()) {
        (true, false) if !files => {
            return Err(part.invalid(
                "client-certificate-data",
                Problem::HalfAPair {
                    other: "client-key-data",
                },
            ));
        }
        (false, true) if !files => {
            return Err(part.invalid(
                "client-key-data",
                Problem::HalfAPair {
                    other: "client-certificate-data",
                },
            ));
        }
        _ => {}
    }
    for text in ["token", "username", "password"] {
        part.keep_text(text, &mut kept)?;
    }
    // Left out, these would hand on more rights than the original has.
    for text in ["as", "as-uid"] {
        part.keep_text(text, &mut kept)?;
    }
    let is_list = |value: &Value| value.as_array().is_some_and(|list| list.iter().all(Value::is_string));
    if part.get("as-groups").is_some_and(|groups| !is_list(groups)) {
        return Err(part.invalid(
            "as-groups",
            Problem::WrongType {
                expected: "a list of texts",
            },
        ));
    }
    let is_map_of_lists = |value: &Value| value.as_object().is_some_and(|map| map.values().all(is_list));
    if part.get("as-user-extra").is_some_and(|extra| !is_map_of_lists(extra)) {
        return Err(part.invalid(
            "as-user-extra",
            Problem::WrongType {
                expected: "a mapping to lists of texts",
            },
        ));
    }
    part.keep("as-groups", &mut kept);
    part.keep("as-user-extra", &mut kept);
    Ok((kept, certificate.flatten()))
}

fn check_server(server: &str) -> Result<(), Problem> {
    let uri: Uri = server.parse().map_err(|_| Problem::NotHttps)?;
    let authority = uri.authority().ok_or(Problem::NotHttps)?;
    if authority.as_str().contains('@') {
        return Err(Problem::Unsafe(Danger::CredentialsInUrl));
    }
    // A port that is no number from 1 to 65535 reads as none, and leaves more behind the host than the host.
    let host_and_port = match authority.port_u16() {
        Some(0) => return Err(Problem::NotHttps),
        Some(port) => format!("{}:{port}", authority.host()),
        None => authority.host().to_owned(),
    };
    if uri.scheme_str() != Some("https") || authority.host().is_empty() || host_and_port != authority.as_str() {
        return Err(Problem::NotHttps);
    }
    Ok(())
}

/// One mapping of the document, with the path to it. Absent, `null` and empty text are the same, as they are to readers.
struct Part<'a> {
    value: &'a Value,
    at: String,
    rules: Rules,
}

impl<'a> Part<'a> {
    fn invalid(&self, key: &str, problem: Problem) -> Invalid {
        let field = if self.at.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.at)
        };
        Invalid::new(field, problem)
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        let value = self.value.get(key)?;
        let empty = value.is_null() || value.as_str().is_some_and(str::is_empty);
        (!empty).then_some(value)
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, Invalid> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.invalid(
                key,
                Problem::WrongType {
                    expected: "text (in quotes if it looks like a number)",
                },
            )),
        }
    }

    fn required_text(&self, key: &str) -> Result<&'a str, Invalid> {
        self.text(key)?.ok_or_else(|| self.invalid(key, Problem::Missing))
    }

    fn constant(&self, key: &str, expected: &'static str) -> Result<(), Invalid> {
        match self.text(key)? {
            Some(text) if text != expected => Err(self.invalid(key, Problem::Unsupported { expected })),
            _ => Ok(()),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, Invalid> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.invalid(
                key,
                Problem::WrongType {
                    expected: "true or false",
                },
            )),
        }
    }

    fn keep(&self, key: &str, kept: &mut Map<String, Value>) {
        if let Some(value) = self.get(key) {
            kept.insert(key.into(), value.clone());
        }
    }

    fn keep_text(&self, key: &str, kept: &mut Map<String, Value>) -> Result<(), Invalid> {
        self.text(key)?;
        self.keep(key, kept);
        Ok(())
    }

    /// Text that is only handed on when templates are trusted. Returns whether it is there.
    fn keep_trusted_text(&self, key: &str, danger: Danger, kept: &mut Map<String, Value>) -> Result<bool, Invalid> {
        if self.get(key).is_none() {
            return Ok(false);
        }
        if self.rules.trust == Trust::DataOnly {
            return Err(self.invalid(key, Problem::Unsafe(danger)));
        }
        self.keep_text(key, kept)?;
        Ok(true)
    }

    /// Base64 of PEM that passes `check`. Returns when it expires, if it does, if it is there.
    fn keep_pem(
        &self,
        key: &str,
        check: impl FnOnce(&[u8], Timestamp) -> Result<Option<Timestamp>, Problem>,
        kept: &mut Map<String, Value>,
    ) -> Result<Option<Option<Timestamp>>, Invalid> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        // Readers pass over line breaks in base64, and over nothing else.
        let compact: String = text.split(['\n', '\r']).collect();
        let pem = STANDARD
            .decode(compact)
            .map_err(|_| self.invalid(key, Problem::NotBase64))?;
        let expires = check(&pem, self.rules.now).map_err(|problem| self.invalid(key, problem))?;
        self.keep(key, kept);
        Ok(Some(expires))
    }

    /// The `inner` part of the entry of `list` that has this name.
    fn named(&self, list: &str, name: &str, inner: &str) -> Result<Self, Invalid> {
        let entries = match self.get(list) {
            None => return Err(self.invalid(list, Problem::Missing)),
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(self.invalid(list, Problem::WrongType { expected: "a list" })),
        };
        let mut found = entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.get("name").and_then(Value::as_str) == Some(name));
        let (index, entry) = found.next().ok_or_else(|| self.invalid(list, Problem::NotListed))?;
        if found.next().is_some() {
            return Err(self.invalid(list, Problem::ListedTwice));
        }
        let at = format!("{list}[{index}].{inner}");
        match entry.get(inner) {
            Some(value @ Value::Object(_)) => Ok(Self {
                value,
                at,
                rules: self.rules,
            }),
            // An entry without contents is one whose fields are all absent.
            None | Some(Value::Null) => Ok(Self {
                value: &Value::Null,
                at,
                rules: self.rules,
            }),
            Some(_) => Err(Invalid::new(at, Problem::WrongType { expected: "a mapping" })),
        }
    }
}

#[cfg(test)]
mod tests;
