//! Reads the address that Terraform reports: a URL, a host or `host:port`.
//!
//! Whatever comes through here is written to the Cluster and dialled by everybody, so it is read strictly. A refusal never
//! repeats the text: it may come from a Secret, and with a password in it.

use std::net::{Ipv4Addr, Ipv6Addr};

use capt_api::common::ApiEndpoint;

/// Where EKS, and HTTPS in general, is reached when nothing else is said.
const DEFAULT_PORT: i32 = 443;

/// DNS' limits.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Why a text is not an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("it is not text")]
    NotText,
    #[error("its scheme is not https")]
    Scheme,
    #[error("it contains a user name or a password")]
    UserInfo,
    #[error("it has a path, and only a URL may end in a slash")]
    Path,
    #[error("it has a query")]
    Query,
    #[error("it has a fragment")]
    Fragment,
    #[error("it names no host")]
    NoHost,
    #[error("its host is neither a DNS name nor an IP address")]
    Host,
    #[error("it has an IPv6 address whose brackets are missing or not closed")]
    Brackets,
    #[error("its port is not a number from 1 to 65535")]
    Port,
}

/// The address that the text names. Space around it, such as the line end of a template's heredoc, does not count.
pub(crate) fn parse(text: &str) -> Result<ApiEndpoint, Invalid> {
    let text = text.trim_ascii();
    match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => match split_tail(rest)? {
            (authority, "" | "/") => in_url(authority),
            _ => Err(Invalid::Path),
        },
        Some(_) => Err(Invalid::Scheme),
        None => match split_tail(text)? {
            (authority, "") => bare(authority),
            _ => Err(Invalid::Path),
        },
    }
}

/// Host and port, and the path behind them.
fn split_tail(text: &str) -> Result<(&str, &str), Invalid> {
    let (authority, tail) = text.split_at(text.find(['/', '?', '#']).unwrap_or(text.len()));
    if authority.contains('@') {
        Err(Invalid::UserInfo)
    } else if tail.contains('#') {
        Err(Invalid::Fragment)
    } else if tail.contains('?') {
        Err(Invalid::Query)
    } else {
        Ok((authority, tail))
    }
}

/// Outside of a URL, an IPv6 address needs no brackets unless a port follows.
fn bare(authority: &str) -> Result<ApiEndpoint, Invalid> {
    if !authority.starts_with('[') && authority.matches(':').count() > 1 {
        return endpoint(ipv6(authority)?, None);
    }
    in_url(authority)
}

fn in_url(authority: &str) -> Result<ApiEndpoint, Invalid> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or(Invalid::Brackets)?;
        let port = match port {
            "" => None,
            port => Some(port.strip_prefix(':').ok_or(Invalid::Brackets)?),
        };
        return endpoint(ipv6(address)?, port);
    }
    match authority.split_once(':') {
        None => endpoint(host(authority)?, None),
        Some((_, port)) if port.contains(':') => Err(Invalid::Brackets),
        Some((name, port)) => endpoint(host(name)?, Some(port)),
    }
}

fn endpoint(host: String, port: Option<&str>) -> Result<ApiEndpoint, Invalid> {
    Ok(ApiEndpoint {
        host,
        port: port.map_or(Ok(DEFAULT_PORT), self::port)?,
    })
}

fn port(text: &str) -> Result<i32, Invalid> {
    // Rust's own parser also takes signs and leading zeros, which others read as octal.
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    let number: u16 = text.parse().ok().filter(|_| is_plain).ok_or(Invalid::Port)?;
    Ok(number.into())
}

/// In its one canonical spelling, so that equal addresses are equal texts.
fn ipv6(text: &str) -> Result<String, Invalid> {
    let address: Ipv6Addr = text.parse().map_err(|_| Invalid::Host)?;
    // An IPv4 address in disguise; the API server takes it for no address at all.
    if address.to_ipv4_mapped().is_some() {
        return Err(Invalid::Host);
    }
    Ok(address.to_string())
}

/// A DNS name or an IPv4 address, in its own spelling: EKS' names have capitals in them.
fn host(text: &str) -> Result<String, Invalid> {
    if text.is_empty() {
        return Err(Invalid::NoHost);
    }
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_name = text.len() <= MAX_NAME && text.split('.').all(is_label);
    // No top-level domain is a number; what looks like one is an IPv4 address, and must then be a right one.
    let is_numeric = text
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_name || (is_numeric && text.parse::<Ipv4Addr>().is_err()) {
        return Err(Invalid::Host);
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_accepted_form() {
        for (text, host, port) in [
            (
                "https://ABCDEF0123.gr7.eu-west-1.eks.amazonaws.com",
                "ABCDEF0123.gr7.eu-west-1.eks.amazonaws.com",
                443,
            ),
            ("https://api.example.com/", "api.example.com", 443),
            ("https://api.example.com:6443", "api.example.com", 6443),
            ("https://api.example.com:6443/", "api.example.com", 6443),
            ("HTTPS://api.example.com", "api.example.com", 443),
            ("api.example.com", "api.example.com", 443),
            ("api.example.com:6443", "api.example.com", 6443),
            ("localhost", "localhost", 443),
            ("10.0.0.1", "10.0.0.1", 443),
            ("10.0.0.1:65535", "10.0.0.1", 65535),
            ("https://127.0.0.1:1", "127.0.0.1", 1),
            ("2001:db8::1", "2001:db8::1", 443),
            ("2001:DB8:0:0:0:0:0:1", "2001:db8::1", 443),
            // Every group is part of the address: without brackets there is no port.
            ("2001:db8::1:443", "2001:db8::1:443", 443),
            ("[2001:db8::1]", "2001:db8::1", 443),
            ("[2001:db8::1]:6443", "2001:db8::1", 6443),
            ("https://[2001:db8::1]", "2001:db8::1", 443),
            ("https://[2001:db8::1]:6443/", "2001:db8::1", 6443),
            ("::1", "::1", 443),
            ("  https://api.example.com\n", "api.example.com", 443),
        ] {
            let expected = ApiEndpoint {
                host: host.into(),
                port,
            };
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        let long_label = format!("{}.com", "a".repeat(64));
        let long_name = ["a".repeat(63).as_str(); 4].join(".");
        for (text, why) in [
            ("http://api.example.com", Invalid::Scheme),
            ("ftp://api.example.com", Invalid::Scheme),
            ("://api.example.com", Invalid::Scheme),
            ("https://user@api.example.com", Invalid::UserInfo),
            ("https://user:secret@api.example.com:443/", Invalid::UserInfo),
            ("user@api.example.com", Invalid::UserInfo),
            ("https://api.example.com/path", Invalid::Path),
            ("https://api.example.com//", Invalid::Path),
            ("api.example.com/", Invalid::Path),
            ("//api.example.com", Invalid::Path),
            ("https://api.example.com?x=1", Invalid::Query),
            ("https://api.example.com/?", Invalid::Query),
            ("https://api.example.com#top", Invalid::Fragment),
            ("https://api.example.com/?x#top", Invalid::Fragment),
            ("", Invalid::NoHost),
            ("https://", Invalid::NoHost),
            ("https:///", Invalid::NoHost),
            (":443", Invalid::NoHost),
            ("https://:443", Invalid::NoHost),
            ("api_server.example.com", Invalid::Host),
            ("-api.example.com", Invalid::Host),
            ("api-.example.com", Invalid::Host),
            ("api..example.com", Invalid::Host),
            ("api.example.com.", Invalid::Host),
            ("api example.com", Invalid::Host),
            ("api.example.com\nx", Invalid::Host),
            ("ápi.example.com", Invalid::Host),
            ("api%2eexample.com", Invalid::Host),
            ("*.example.com", Invalid::Host),
            (&long_label, Invalid::Host),
            (&long_name, Invalid::Host),
            ("256.0.0.1", Invalid::Host),
            ("10.0.0", Invalid::Host),
            ("10.0.0.01", Invalid::Host),
            ("6443", Invalid::Host),
            ("[]", Invalid::Host),
            ("[10.0.0.1]", Invalid::Host),
            ("[fe80::1%eth0]", Invalid::Host),
            ("2001:db8::g", Invalid::Host),
            ("::ffff:10.0.0.1", Invalid::Host),
            ("a:b:c", Invalid::Host),
            ("[2001:db8::1", Invalid::Brackets),
            ("[2001:db8::1]443", Invalid::Brackets),
            ("https://2001:db8::1", Invalid::Brackets),
            ("https://api.example.com:443:443", Invalid::Brackets),
            ("api.example.com:", Invalid::Port),
            ("api.example.com:0", Invalid::Port),
            ("api.example.com:65536", Invalid::Port),
            ("api.example.com:+443", Invalid::Port),
            ("api.example.com:0443", Invalid::Port),
            ("api.example.com:https", Invalid::Port),
            ("[2001:db8::1]:", Invalid::Port),
        ] {
            assert_eq!(parse(text), Err(why), "{text:?}");
        }
    }

    /// What the CRDs of CAPT and of Cluster API accept as a host.
    fn fits_the_schema(endpoint: &ApiEndpoint) -> bool {
        let is_ip = endpoint.host.parse::<std::net::IpAddr>().is_ok();
        let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let is_name = edge(endpoint.host.chars().next())
            && edge(endpoint.host.chars().last())
            && endpoint
                .host
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
        (is_ip || is_name) && endpoint.host.len() <= 512 && (1..=65535).contains(&endpoint.port)
    }

    fn a_host() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-zA-Z]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?(\\.[a-zA-Z]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?){0,4}",
            any::<Ipv4Addr>().prop_map(|address| address.to_string()),
        ]
    }

    fn an_ipv6() -> impl Strategy<Value = Ipv6Addr> {
        any::<Ipv6Addr>().prop_filter("not IPv4 in disguise", |address| address.to_ipv4_mapped().is_none())
    }

    proptest! {
        /// Anything at all, and things that look like addresses: no panic, and what is accepted can be stored.
        #[test]
        fn whatever_is_accepted_can_be_stored(
            text in prop_oneof![any::<String>(), "(https?://)?[a-z0-9.:@/?#\\[\\]%_ -]{0,40}"],
        ) {
            if let Ok(endpoint) = parse(&text) {
                prop_assert!(fits_the_schema(&endpoint), "{:?}", endpoint);
                prop_assert_eq!(parse(&endpoint.to_string()), Ok(endpoint.clone()), "its own text");
                prop_assert_eq!(parse(&format!("https://{endpoint}/")), Ok(endpoint), "as a URL");
            }
        }

        #[test]
        fn every_way_to_write_an_address_is_the_same_address(host in a_host(), port in 1..=65535i32) {
            let expected = Ok(ApiEndpoint { host: host.clone(), port });
            for text in [format!("{host}:{port}"), format!("https://{host}:{port}"), format!("https://{host}:{port}/")] {
                prop_assert_eq!(&parse(&text), &expected, "{}", text);
            }
            let expected = Ok(ApiEndpoint { host: host.clone(), port: 443 });
            for text in [host.clone(), format!("https://{host}"), format!("https://{host}/"), format!(" {host}\n")] {
                prop_assert_eq!(&parse(&text), &expected, "{}", text);
            }
        }

        #[test]
        fn so_is_every_way_to_write_an_ipv6_address(address in an_ipv6(), port in 1..=65535i32) {
            let groups = address.segments().map(|group| format!("{group:04X}")).join(":");
            for text in [address.to_string(), groups] {
                let host = address.to_string();
                let default = Ok(ApiEndpoint { host: host.clone(), port: 443 });
                let given = Ok(ApiEndpoint { host, port });
                prop_assert_eq!(&parse(&text), &default);
                prop_assert_eq!(&parse(&format!("[{text}]")), &default);
                prop_assert_eq!(&parse(&format!("https://[{text}]")), &default);
                prop_assert_eq!(&parse(&format!("[{text}]:{port}")), &given);
                prop_assert_eq!(&parse(&format!("https://[{text}]:{port}/")), &given);
            }
        }

        #[test]
        fn no_refusal_repeats_what_it_refuses(secret in "[A-Z]{12}", host in a_host()) {
            for text in [format!("https://user:{secret}@{host}"), format!("https://{host}/{secret}"), format!("{secret}_{host}")] {
                let refusal = parse(&text).unwrap_err();
                let told = format!("{refusal} {refusal:?}");
                prop_assert!(!told.contains(&secret));
            }
        }
    }
}
