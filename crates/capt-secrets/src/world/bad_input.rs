//! What people and templates really put into connection Secrets: each is copied, or refused with a message that names the
//! field and the fix. Nothing of it ends in a panic, and nothing refused leaves a copy behind.

use super::tests::{decoded, is, secrets_ready, told};
use super::*;

/// A valid kubeconfig, changed.
fn kubeconfig(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut kubeconfig = samples::kubeconfig("t");
    change(&mut kubeconfig);
    samples::yaml(&kubeconfig).into_bytes()
}

fn good() -> Vec<u8> {
    kubeconfig(|_| {})
}

fn authority() -> Vec<u8> {
    samples::base64(&samples::authority()).into_bytes()
}

fn user(user: Value) -> Vec<u8> {
    kubeconfig(|kubeconfig| kubeconfig["users"][0]["user"] = user)
}

fn cluster(key: &str, value: Value) -> Vec<u8> {
    kubeconfig(|kubeconfig| kubeconfig["clusters"][0]["cluster"][key] = value)
}

const SECRET: &str = "Secret demo-eks-connection: ";
const CA_FIELD: &str = "cluster_certificate_authority_data";

/// What a pass makes of a source with these two keys.
fn judged(kubeconfig: &[u8], authority: &[u8]) -> (World, String, String) {
    let world = World::new();
    world.set_source(&[("kubeconfig", kubeconfig), (CA_FIELD, authority)]);
    block_on(world.settle(&world.worker())).unwrap();
    let message = secrets_ready(&world)["message"].as_str().unwrap_or_default().to_owned();
    let reason = told(&world).1;
    (world, reason, message)
}

#[test]
fn what_is_refused_names_the_field_and_the_fix() {
    let expired = samples::ending(2020);
    let (certificate, key) = samples::client();
    let (certificate, key) = (samples::base64(&certificate), samples::base64(&key));
    let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "aws", "args": ["eks", "get-token"]}});
    for (what, kubeconfig, authority, reason, field, fix) in [
        // Nothing at all.
        (
            "an empty kubeconfig",
            vec![],
            authority(),
            "Failed",
            "kubeconfig is missing",
            "must be given",
        ),
        (
            "blanks",
            b" \r\n\t".to_vec(),
            authority(),
            "Failed",
            "kubeconfig is missing",
            "must be given",
        ),
        (
            "an empty CA",
            good(),
            vec![],
            "Failed",
            "cluster_certificate_authority_data is missing",
            "must be given",
        ),
        (
            "a blank CA",
            good(),
            b"\r\n".to_vec(),
            "Failed",
            "cluster_certificate_authority_data is missing",
            "must be given",
        ),
        // Not text.
        (
            "a binary kubeconfig",
            vec![0, 159, 146, 150],
            authority(),
            "Failed",
            "kubeconfig is not UTF-8",
            "give text",
        ),
        (
            "a gzipped one",
            vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0],
            authority(),
            "Failed",
            "kubeconfig is not UTF-8",
            "give text",
        ),
        (
            "a binary CA",
            good(),
            vec![0x30, 0x82, 0xff, 0xfe],
            "Failed",
            "cluster_certificate_authority_data is not UTF-8",
            "give text",
        ),
        (
            "a NUL in the text",
            b"apiVersion: v1\0".to_vec(),
            authority(),
            "Failed",
            "kubeconfig",
            ": ",
        ),
        // Too much.
        (
            "1 MiB",
            vec![b'#'; 1 << 20],
            authority(),
            "Failed",
            "kubeconfig is larger than 256 KiB",
            "leave out",
        ),
        (
            "1 MiB of CA",
            good(),
            vec![b'A'; 1 << 20],
            "Failed",
            "cluster_certificate_authority_data is larger than 64 KiB",
            "leave out",
        ),
        (
            "a bottomless one",
            format!("a: {}", "[".repeat(5_000)).into_bytes(),
            authority(),
            "Failed",
            "kubeconfig is not valid YAML",
            ": ",
        ),
        // Not a kubeconfig.
        (
            "broken YAML",
            b"apiVersion: v1\nclusters: [\n".to_vec(),
            authority(),
            "Failed",
            "kubeconfig is not valid YAML",
            "correct line",
        ),
        (
            "text",
            "接続情報".as_bytes().to_vec(),
            authority(),
            "Failed",
            "kubeconfig must be",
            "a YAML mapping",
        ),
        (
            "base64 of one",
            samples::base64("apiVersion: v1").into_bytes(),
            authority(),
            "Failed",
            "kubeconfig must be",
            "a YAML mapping",
        ),
        (
            "two documents",
            [&good()[..], b"---\n", &good()].concat(),
            authority(),
            "Failed",
            "kubeconfig is not valid YAML",
            ": ",
        ),
        (
            "another kind",
            kubeconfig(|kubeconfig| kubeconfig["kind"] = "Secret".into()),
            authority(),
            "Failed",
            "kubeconfig: kind must be Config",
            "or be left out",
        ),
        // Contexts.
        (
            "several contexts and none chosen",
            kubeconfig(|kubeconfig| {
                let more = json!({"name": "more", "context": {"cluster": "demo", "user": "admin"}});
                kubeconfig["contexts"].as_array_mut().unwrap().push(more);
                kubeconfig.as_object_mut().unwrap().remove("current-context");
            }),
            authority(),
            "Failed",
            "kubeconfig: current-context is missing",
            "must be given",
        ),
        (
            "a context that is not there",
            kubeconfig(|kubeconfig| kubeconfig["current-context"] = "本番".into()),
            authority(),
            "Failed",
            "kubeconfig: contexts has no entry",
            "add it, or correct the name",
        ),
        (
            "a context that is there twice",
            kubeconfig(|kubeconfig| {
                let twin = kubeconfig["contexts"][0].clone();
                kubeconfig["contexts"].as_array_mut().unwrap().push(twin);
            }),
            authority(),
            "Failed",
            "kubeconfig: contexts has more than one entry",
            "keep one of them",
        ),
        // Fields of the wrong type.
        (
            "a number as a token",
            user(json!({"token": 12345})),
            authority(),
            "Failed",
            "kubeconfig: users[0].user.token must be",
            "in quotes",
        ),
        (
            "a list as a server",
            cluster("server", json!(["https://a"])),
            authority(),
            "Failed",
            "clusters[0].cluster.server must be",
            "text",
        ),
        (
            "a text as a flag",
            cluster("insecure-skip-tls-verify", json!("no")),
            authority(),
            "Failed",
            "insecure-skip-tls-verify must be",
            "true or false",
        ),
        (
            "an http server",
            cluster("server", json!("http://a")),
            authority(),
            "Failed",
            "clusters[0].cluster.server must be",
            "https URL",
        ),
        // What would act in the reader's pod.
        (
            "an exec plugin",
            user(exec),
            authority(),
            "UnsafeKubeconfig",
            "kubeconfig: users[0].user.exec is refused",
            "give a token or a client certificate",
        ),
        (
            "an auth provider",
            user(json!({"auth-provider": {"name": "gcp"}})),
            authority(),
            "UnsafeKubeconfig",
            "users[0].user.auth-provider is refused",
            "give a token",
        ),
        (
            "a token in a file",
            user(json!({"tokenFile": "/etc/shadow"})),
            authority(),
            "UnsafeKubeconfig",
            "users[0].user.tokenFile is refused",
            "give the contents",
        ),
        (
            "a CA in a file",
            cluster("certificate-authority", json!("../ca.pem")),
            authority(),
            "UnsafeKubeconfig",
            "clusters[0].cluster.certificate-authority is refused",
            "give the contents",
        ),
        (
            "keys in files",
            user(json!({"client-certificate": "a.pem", "client-key": "b.pem"})),
            authority(),
            "UnsafeKubeconfig",
            "users[0].user.client-certificate is refused",
            "give the contents",
        ),
        (
            "a proxy",
            cluster("proxy-url", json!("socks5://a")),
            authority(),
            "UnsafeKubeconfig",
            "clusters[0].cluster.proxy-url is refused",
            "leave it out",
        ),
        (
            "no verification",
            cluster("insecure-skip-tls-verify", json!(true)),
            authority(),
            "UnsafeKubeconfig",
            "insecure-skip-tls-verify is refused",
            "certificate-authority-data",
        ),
        (
            "a password in the URL",
            cluster("server", json!("https://u:p@a")),
            authority(),
            "UnsafeKubeconfig",
            "server is refused",
            "into the user's entry",
        ),
        // Certificates.
        (
            "no certificate in the kubeconfig",
            cluster("certificate-authority-data", json!("")),
            authority(),
            "Failed",
            "clusters[0].cluster.certificate-authority-data is missing",
            "must be given",
        ),
        (
            "PEM where base64 is due",
            cluster("certificate-authority-data", json!(samples::authority())),
            authority(),
            "Failed",
            "certificate-authority-data is not base64",
            "encode the PEM",
        ),
        (
            "no certificate in the CA",
            good(),
            samples::base64("hello").into_bytes(),
            "Failed",
            "cluster_certificate_authority_data holds no usable certificate",
            "as PEM",
        ),
        (
            "base64 twice",
            good(),
            samples::base64(&samples::base64(&samples::authority())).into_bytes(),
            "Failed",
            "cluster_certificate_authority_data holds no usable certificate",
            "as PEM",
        ),
        (
            "a CA that is not even base64",
            good(),
            "証明書".as_bytes().to_vec(),
            "Failed",
            "cluster_certificate_authority_data is not base64",
            "encode the PEM",
        ),
        (
            "an expired CA",
            good(),
            expired.clone().into_bytes(),
            "Failed",
            "cluster_certificate_authority_data has expired",
            "renew the certificate",
        ),
        (
            "an expired CA in the kubeconfig",
            cluster("certificate-authority-data", json!(samples::base64(&expired))),
            authority(),
            "Failed",
            "clusters[0].cluster.certificate-authority-data has expired",
            "renew the certificate",
        ),
        (
            "an expired client certificate",
            user(json!({"client-certificate-data": samples::base64(&expired), "client-key-data": key})),
            authority(),
            "Failed",
            "users[0].user.client-certificate-data has expired",
            "renew the certificate",
        ),
        (
            "a certificate without its key",
            user(json!({"client-certificate-data": certificate})),
            authority(),
            "Failed",
            "users[0].user.client-certificate-data is there without client-key-data",
            "give both or neither",
        ),
        (
            "a certificate in place of its key",
            user(json!({"client-certificate-data": certificate, "client-key-data": certificate})),
            authority(),
            "Failed",
            "users[0].user.client-key-data holds no usable private key",
            "as PEM",
        ),
    ] {
        let (world, said, message) = judged(&kubeconfig, &authority);
        assert_eq!(told(&world), is("False", reason), "{what}: {message}");
        assert_eq!(said, reason);
        assert!(message.starts_with(SECRET), "{what}: {message}");
        assert!(message.contains(field) && message.contains(fix), "{what}: {message}");
        assert_eq!(world.secrets(), [SOURCE], "{what}");
    }
}

#[test]
fn what_is_unusual_and_harmless_is_copied() {
    let text = String::from_utf8(good()).unwrap();
    let crlf = text.replace('\n', "\r\n");
    let pem_crlf = samples::authority().replace('\n', "\r\n");
    let wrapped: Vec<String> = String::from_utf8(authority())
        .unwrap()
        .as_bytes()
        .chunks(76)
        .map(|line| String::from_utf8(line.to_vec()).unwrap())
        .collect();
    let old_and_new = format!("{}{}", samples::ending(2020), samples::authority());
    for (what, kubeconfig, authority) in [
        ("CRLF", crlf.into_bytes(), pem_crlf.into_bytes()),
        ("CRLF in base64", good(), wrapped.join("\r\n").into_bytes()),
        ("PEM", good(), samples::authority().into_bytes()),
        (
            "a byte order mark",
            [b"\xef\xbb\xbf", &good()[..]].concat(),
            authority(),
        ),
        ("JSON", samples::kubeconfig("t").to_string().into_bytes(), authority()),
        (
            "an expired authority beside a valid one",
            good(),
            old_and_new.into_bytes(),
        ),
        (
            "unicode names",
            kubeconfig(|kubeconfig| {
                kubeconfig["current-context"] = "本番@🚀".into();
                kubeconfig["contexts"][0]["name"] = "本番@🚀".into();
            }),
            authority(),
        ),
        (
            "an expired certificate in a context that is not the current one",
            kubeconfig(|kubeconfig| {
                let ca = samples::base64(&samples::ending(2020));
                let old =
                    json!({"name": "old", "cluster": {"server": "https://old", "certificate-authority-data": ca}});
                kubeconfig["clusters"].as_array_mut().unwrap().push(old);
            }),
            authority(),
        ),
    ] {
        let (world, _, message) = judged(&kubeconfig, &authority);
        assert_eq!(told(&world), is("True", "Ready"), "{what}: {message}");
        assert_eq!(world.secrets().len(), 4, "{what}");
        let copied = decoded(&world, "demo-kubeconfig", "value");
        assert!(
            copied.contains("https://demo.example.com:6443") && !copied.contains('\r'),
            "{what}"
        );
    }
}

/// What Terraform writes is taken, whatever type the Secret has; half of it, or other keys, are not.
#[test]
fn the_source_is_judged_by_its_keys_and_not_by_its_type() {
    for type_ in ["Opaque", "kubernetes.io/tls", "example.com/made-up"] {
        let world = World::new();
        world.edit("secrets", SOURCE, |secret| secret["type"] = type_.into());
        block_on(world.settle(&world.worker())).unwrap();
        assert_eq!(told(&world), is("True", "Ready"), "{type_}");
    }
    let world = World::new();
    world.set_source(&[("kubeConfig", &good()), ("ca.crt", &authority())]);
    block_on(world.settle(&world.worker())).unwrap();
    let message = secrets_ready(&world)["message"].as_str().unwrap().to_owned();
    assert_eq!(
        message,
        format!("{SECRET}kubeconfig is missing or empty, and must be given")
    );
}

/// A certificate that expires while all is quiet is told without any event, and healed by the next good source.
#[test]
fn an_expiry_is_noticed_in_time_and_healed() {
    let world = World::new();
    let worker = world.worker();
    let end: Timestamp = "2028-01-01T00:00:00Z".parse().unwrap();
    let ending = samples::ending(2028);
    world.set_source(&[("kubeconfig", &good()), (CA_FIELD, ending.as_bytes())]);
    let pass = |now: Timestamp| block_on(worker.pass(&world.view().unwrap(), now)).unwrap();
    let soon = end - jiff::SignedDuration::from_secs(1);
    assert_eq!(pass(soon), capt_runtime::controller::Wake::At(end));
    assert_eq!(pass(soon), capt_runtime::controller::Wake::At(end), "from memory, too");
    assert_eq!(told(&world), is("True", "Ready"));

    pass(end);
    assert_eq!(told(&world), is("False", "Failed"));
    let message = secrets_ready(&world)["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("cluster_certificate_authority_data has expired"),
        "{message}"
    );
    assert_eq!(decoded(&world, "demo-ca", "tls.crt"), ending, "nothing is taken away");

    world.fill_source("renewed");
    pass(end);
    assert_eq!(told(&world), is("True", "Ready"));
    assert_eq!(decoded(&world, "demo-ca", "tls.crt"), samples::authority());
}

/// A good copy is not replaced by one that has expired.
#[test]
fn an_expired_source_leaves_good_copies_alone() {
    let world = World::new();
    let worker = world.worker();
    block_on(world.settle(&worker)).unwrap();
    let writes = world.writes().len();
    world.set_source(&[("kubeconfig", &good()), (CA_FIELD, samples::ending(2020).as_bytes())]);
    block_on(world.settle(&worker)).unwrap();
    assert_eq!(told(&world), is("True", "Failed"));
    assert_eq!(world.writes().len(), writes + 1, "the report alone");
    assert_eq!(decoded(&world, "demo-ca", "tls.crt"), samples::authority());
}
