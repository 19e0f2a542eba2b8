use proptest::prelude::*;

use super::*;
use crate::samples;

fn read(kubeconfig: &Value, trust: Trust) -> Result<Value, Invalid> {
    read_text(&samples::yaml(kubeconfig), trust)
}

fn read_text(text: &str, trust: Trust) -> Result<Value, Invalid> {
    let copied = Kubeconfig::read(text.as_bytes(), samples::rules(trust))?.into_bytes();
    Ok(serde_saphyr::from_str(std::str::from_utf8(&copied).unwrap()).unwrap())
}

/// The kubeconfig of the samples with one value set, or taken away.
fn with(pointer: &str, value: Value) -> Value {
    let mut kubeconfig = samples::kubeconfig("t");
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let members = kubeconfig.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Value::Null => members.remove(key),
        value => members.insert(key.into(), value),
    };
    kubeconfig
}

const CLUSTER: &str = "/clusters/0/cluster";
const USER: &str = "/users/0/user";

#[test]
fn a_plain_kubeconfig_with_one_context_stays_as_it_was_written() {
    let authority = samples::base64(&samples::authority());
    let text = format!(
        "# made by a template\napiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: a\n\
         clusters:\n- name: a\n  cluster:\n    server: https://demo.example.com\n    certificate-authority-data: {authority}\n\
         users:\n- name: a\n  user:\n    token: secret\n\
         contexts:\n- name: a\n  context:\n    cluster: a\n    user: a\n"
    );
    assert!(
        Kubeconfig::read(text.as_bytes(), samples::rules(Trust::DataOnly)).map(Kubeconfig::into_bytes)
            == Ok(text.into_bytes())
    );
}

#[test]
fn only_the_current_context_is_kept() {
    let mut many = samples::kubeconfig("mine");
    let kept = many.clone();
    let push = |many: &mut Value, list: &str, entry: Value| many[list].as_array_mut().unwrap().insert(0, entry);
    push(
        &mut many,
        "clusters",
        json!({"name": "other", "cluster": {"server": "https://other", "insecure-skip-tls-verify": true}}),
    );
    push(
        &mut many,
        "users",
        json!({"name": "other", "user": {"token": "theirs", "exec": {"command": "aws"}}}),
    );
    push(
        &mut many,
        "contexts",
        json!({"name": "other", "context": {"cluster": "other", "user": "other"}}),
    );
    many["extensions"] = json!([{"name": "x", "extension": {"a": "theirs"}}]);
    many["clusters"][1]["cluster"]["extensions"] = json!([{"name": "x"}]);
    many["users"][1]["user"]["something-new"] = json!("theirs");
    assert_eq!(read(&many, Trust::DataOnly).unwrap(), kept);
}

#[test]
fn json_is_yaml() {
    let kubeconfig = samples::kubeconfig("t");
    assert_eq!(read_text(&kubeconfig.to_string(), Trust::DataOnly).unwrap(), kubeconfig);
}

#[test]
fn every_sort_of_data_credential_is_kept() {
    let (certificate, key) = samples::client();
    let user = json!({
        "client-certificate-data": samples::base64(&certificate), "client-key-data": samples::base64(&key),
        "token": "t", "username": "u", "password": "p", "as": "someone", "as-uid": "1", "as-groups": ["g"], "as-user-extra": {"a": ["b"]},
    });
    let kubeconfig = with(USER, user);
    assert_eq!(read(&kubeconfig, Trust::DataOnly).unwrap(), kubeconfig);
    let more = with(&format!("{CLUSTER}/tls-server-name"), json!("kubernetes"));
    assert_eq!(read(&more, Trust::DataOnly).unwrap(), more);
}

/// One row for each thing that a reader would do in its own pod.
#[test]
fn programs_files_and_proxies_need_trust() {
    for (pointer, value) in [
        (
            format!("{USER}/exec"),
            json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "aws"}),
        ),
        (format!("{USER}/auth-provider"), json!({"name": "gcp"})),
        (format!("{USER}/client-certificate"), json!("/var/run/x")),
        (format!("{USER}/client-key"), json!("/var/run/x")),
        (
            format!("{USER}/tokenFile"),
            json!("/var/run/secrets/kubernetes.io/serviceaccount/token"),
        ),
        (format!("{CLUSTER}/certificate-authority"), json!("/var/run/x")),
        (format!("{CLUSTER}/proxy-url"), json!("http://proxy:3128")),
    ] {
        let kubeconfig = with(&pointer, value);
        let refused = read(&kubeconfig, Trust::DataOnly).unwrap_err();
        assert!(refused.is_unsafe(), "{pointer}: {refused}");
        let key = pointer.rsplit_once('/').unwrap().1;
        assert!(refused.to_string().contains(key), "{pointer}: {refused}");
        assert_eq!(read(&kubeconfig, Trust::Templates).unwrap(), kubeconfig, "{pointer}");
    }
}

#[test]
fn an_authority_in_a_file_takes_the_place_of_data_when_files_are_trusted() {
    let mut kubeconfig = with(&format!("{CLUSTER}/certificate-authority-data"), Value::Null);
    kubeconfig["clusters"][0]["cluster"]["certificate-authority"] = json!("/etc/ca.crt");
    assert_eq!(read(&kubeconfig, Trust::Templates).unwrap(), kubeconfig);
}

#[test]
fn skipped_verification_and_credentials_in_the_url_are_refused_to_everybody() {
    for (key, value) in [
        ("insecure-skip-tls-verify", json!(true)),
        ("server", json!("https://user:password@demo.example.com")),
    ] {
        let kubeconfig = with(&format!("{CLUSTER}/{key}"), value);
        for trust in [Trust::DataOnly, Trust::Templates] {
            assert!(read(&kubeconfig, trust).unwrap_err().is_unsafe(), "{key}");
        }
    }
    let harmless = with(&format!("{CLUSTER}/insecure-skip-tls-verify"), json!(false));
    assert_eq!(read(&harmless, Trust::DataOnly).unwrap(), harmless);
}

/// One row for each way in which a kubeconfig can be broken: the field is named.
#[test]
fn what_is_wrong_is_told_with_its_field() {
    let (certificate, key) = samples::client();
    let second = json!([
        samples::kubeconfig("t")["users"][0],
        samples::kubeconfig("t")["users"][0]
    ]);
    for (kubeconfig, field, problem) in [
        (
            with("/apiVersion", json!("v2")),
            "apiVersion",
            Problem::Unsupported { expected: "v1" },
        ),
        (
            with("/kind", json!("Secret")),
            "kind",
            Problem::Unsupported { expected: "Config" },
        ),
        (
            with("/current-context", Value::Null),
            "current-context",
            Problem::Missing,
        ),
        (with("/current-context", json!("")), "current-context", Problem::Missing),
        (with("/current-context", json!("none")), "contexts", Problem::NotListed),
        (with("/contexts", Value::Null), "contexts", Problem::Missing),
        (
            with("/contexts", json!({"a": "b"})),
            "contexts",
            Problem::WrongType { expected: "a list" },
        ),
        (
            with("/contexts/0/context", Value::Null),
            "contexts[0].context.cluster",
            Problem::Missing,
        ),
        (
            with("/contexts/0/context", json!("x")),
            "contexts[0].context",
            Problem::WrongType { expected: "a mapping" },
        ),
        (
            with("/contexts/0/context/user", Value::Null),
            "contexts[0].context.user",
            Problem::Missing,
        ),
        (
            with("/contexts/0/context/cluster", json!("none")),
            "clusters",
            Problem::NotListed,
        ),
        (with("/clusters", json!([])), "clusters", Problem::NotListed),
        (with("/users", second), "users", Problem::ListedTwice),
        (with("/users", json!([null, 7])), "users", Problem::NotListed),
        (
            with(&format!("{CLUSTER}/server"), Value::Null),
            "clusters[0].cluster.server",
            Problem::Missing,
        ),
        (
            with(&format!("{CLUSTER}/server"), json!("http://a")),
            "clusters[0].cluster.server",
            Problem::NotHttps,
        ),
        (
            with(&format!("{CLUSTER}/certificate-authority-data"), Value::Null),
            "clusters[0].cluster.certificate-authority-data",
            Problem::Missing,
        ),
        (
            with(&format!("{CLUSTER}/certificate-authority-data"), json!("?")),
            "clusters[0].cluster.certificate-authority-data",
            Problem::NotBase64,
        ),
        (
            with(&format!("{CLUSTER}/certificate-authority-data"), json!("YQ==")),
            "clusters[0].cluster.certificate-authority-data",
            Problem::NotACertificate,
        ),
        (
            with(&format!("{CLUSTER}/insecure-skip-tls-verify"), json!("yes please")),
            "clusters[0].cluster.insecure-skip-tls-verify",
            Problem::WrongType {
                expected: "true or false",
            },
        ),
        (
            with(&format!("{USER}/token"), json!(12345)),
            "users[0].user.token",
            Problem::WrongType {
                expected: "text (in quotes if it looks like a number)",
            },
        ),
        (
            with(USER, json!({"client-certificate-data": samples::base64(&certificate)})),
            "users[0].user.client-certificate-data",
            Problem::HalfAPair {
                other: "client-key-data",
            },
        ),
        (
            with(USER, json!({"client-key-data": samples::base64(&key)})),
            "users[0].user.client-key-data",
            Problem::HalfAPair {
                other: "client-certificate-data",
            },
        ),
        (
            with(
                USER,
                json!({"client-certificate-data": "YQ==", "client-key-data": samples::base64(&key)}),
            ),
            "users[0].user.client-certificate-data",
            Problem::NotACertificate,
        ),
        (
            with(
                USER,
                json!({"client-certificate-data": samples::base64(&certificate), "client-key-data": "YQ=="}),
            ),
            "users[0].user.client-key-data",
            Problem::NotAPrivateKey,
        ),
    ] {
        assert_eq!(read(&kubeconfig, Trust::DataOnly), Err(Invalid::new(field, problem)));
    }
}

#[test]
fn what_is_no_kubeconfig_at_all() {
    for (text, problem) in [
        ("".to_owned(), Problem::Missing),
        (" \n\n".to_owned(), Problem::Missing),
        (
            "just text".to_owned(),
            Problem::WrongType {
                expected: "a YAML mapping",
            },
        ),
        (
            "- a\n- b\n".to_owned(),
            Problem::WrongType {
                expected: "a YAML mapping",
            },
        ),
        ("a: [".to_owned(), Problem::NotYaml { line: 1, column: 4 }),
        ("a: 1\na: 2\n".to_owned(), Problem::NotYaml { line: 2, column: 1 }),
        (
            "x".repeat(MAX_KUBECONFIG + 1),
            Problem::TooLarge { limit: MAX_KUBECONFIG },
        ),
    ] {
        let head: String = text.chars().take(20).collect();
        assert_eq!(
            read_text(&text, Trust::DataOnly).map_err(|e| e.problem().clone()),
            Err(problem),
            "{head:?}"
        );
    }
    let binary = Kubeconfig::read(&[0xff, 0x00], samples::rules(Trust::DataOnly)).map(drop);
    assert_eq!(binary, Err(Invalid::new("", Problem::NotUtf8)));
}

#[test]
fn a_document_that_grows_without_bounds_is_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", vec![before; 9].join(", "));
    }
    let refused = read_text(&bomb, Trust::DataOnly).unwrap_err();
    assert!(matches!(refused.problem(), Problem::NotYaml { .. }), "{refused}");
    let deep = format!("a: {}", "[".repeat(10_000));
    assert!(matches!(
        read_text(&deep, Trust::DataOnly).unwrap_err().problem(),
        Problem::NotYaml { .. }
    ));
}

#[test]
fn servers() {
    for good in [
        "https://a",
        "https://a/",
        "https://a:6443",
        "https://10.0.0.1:443",
        "https://[2001:db8::1]:443",
        "https://a/k8s/clusters/c-1",
    ] {
        assert_eq!(check_server(good), Ok(()), "{good}");
    }
    for bad in [
        "a",
        "a:443",
        "//a",
        "http://a",
        "https://",
        "https://:443",
        "https://a:0",
        "https://a:99999",
        "https://a:b",
        "https:// a",
        "ftp://a",
        "HTTPS//a",
    ] {
        assert!(check_server(bad).is_err(), "{bad}");
    }
}

/// What makes parsers of YAML disagree is written anew, so that all readers see what was checked.
#[test]
fn a_text_that_parsers_read_differently_is_written_anew() {
    let kubeconfig = samples::kubeconfig("t");
    let plain = samples::yaml(&kubeconfig);
    for text in [
        format!("---\n{plain}"),
        format!("%YAML 1.2\n---\n{plain}"),
        format!("{plain}# \u{2028}users: []\n"),
        plain.replace("current-context: ", "current-context: !!str "),
        plain.replace("  name: demo", "  name: &n demo"),
    ] {
        assert_ne!(text, plain);
        let copied = Kubeconfig::read(text.as_bytes(), samples::rules(Trust::DataOnly)).map(Kubeconfig::into_bytes);
        let copied = copied.unwrap_or_else(|error| panic!("{error} in {text}"));
        assert_ne!(copied, text.as_bytes());
        assert_eq!(
            serde_saphyr::from_str::<Value>(std::str::from_utf8(&copied).unwrap()).unwrap(),
            kubeconfig
        );
    }
}

/// Values that YAML 1.1 reads as something else than text must come out in quotes.
#[test]
fn text_that_looks_like_something_else_stays_text() {
    for token in [
        "yes",
        "on",
        "null",
        "~",
        "1e3",
        "0x1f",
        "12:30:45",
        "2026-01-01",
        "1_000",
        "",
        " a ",
        "a: b",
        "# a",
        "- a",
        "'",
        "\"",
        "\\",
        "a\nb",
    ] {
        let mut kubeconfig = samples::kubeconfig("t");
        kubeconfig["users"][0]["user"]["password"] = json!(token);
        kubeconfig["dropped"] = json!(1);
        let copied = Kubeconfig::read(kubeconfig.to_string().as_bytes(), samples::rules(Trust::DataOnly))
            .map(Kubeconfig::into_bytes)
            .unwrap_or_default();
        let text = String::from_utf8(copied).unwrap();
        let back: Value = serde_saphyr::from_str(&text).unwrap();
        if token.is_empty() {
            assert_eq!(back["users"][0]["user"]["password"], Value::Null);
        } else {
            assert_eq!(back["users"][0]["user"]["password"], json!(token));
            assert!(
                text.contains("password: '") || text.contains("password: \""),
                "{token:?} in {text}"
            );
        }
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::btree_map("[a-z-]{1,12}", inner, 0..5).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    /// Arbitrary bytes end in a verdict, not in a panic.
    #[test]
    fn any_bytes_are_judged(data in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = Kubeconfig::read(&data, samples::rules(Trust::DataOnly));
    }

    /// A kubeconfig with anything in place of one of its parts is judged; what passes holds no more than was allowed, and
    /// passes again unchanged.
    #[test]
    fn what_passes_is_safe_and_passes_again(
        place in proptest::sample::select(vec!["/clusters", "/users", "/contexts", "/clusters/0", "/users/0", "/contexts/0",
            "/clusters/0/cluster", "/users/0/user", "/contexts/0/context", "/users/0/user/token", "/users/0/user/exec",
            "/clusters/0/cluster/proxy-url", "/users/0/user/as-groups", "/current-context"]),
        value in json_value(),
    ) {
        let mut kubeconfig = samples::kubeconfig("t");
        if let Some((parent, key)) = place.rsplit_once('/')
            && let Some(members) = kubeconfig.pointer_mut(parent).and_then(Value::as_object_mut)
        {
            members.insert(key.into(), value);
        } else if let Some(here) = kubeconfig.pointer_mut(place) {
            *here = value;
        }
        if let Ok(copied) = Kubeconfig::read(kubeconfig.to_string().as_bytes(), samples::rules(Trust::DataOnly)) {
            let copied = copied.into_bytes();
            let seen: Value = serde_saphyr::from_str(std::str::from_utf8(&copied).unwrap()).unwrap();
            for danger in ["exec", "auth-provider", "tokenFile", "client-key", "client-certificate"] {
                prop_assert!(seen["users"][0]["user"].get(danger).is_none(), "{}", danger);
            }
            for danger in ["proxy-url", "certificate-authority"] {
                prop_assert!(seen["clusters"][0]["cluster"].get(danger).is_none(), "{}", danger);
            }
            let again = Kubeconfig::read(&copied, samples::rules(Trust::DataOnly)).map(Kubeconfig::into_bytes);
            prop_assert!(again == Ok(copied));
        }
    }
}
